#include "admission/join_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/coding.h"

namespace cairnfs::admission {
namespace {

constexpr std::string_view kMagic = "cairnfs join";
constexpr size_t kErrorBytesMax = 4096;
constexpr uint8_t kIsMessage = 0, kIsError = 1;

Error Malformed() { return MakeError(ErrorCode::kInvalidArgument, "a message of joining is malformed"); }

// Texts one after the other.
template <size_t kCount>
std::string EncodeTexts(const std::array<std::string_view, kCount>& texts) {
  Encoder out;
  for (const std::string_view text : texts) out.LengthPrefixed(text);
  return out.Take();
}
template <size_t kCount>
Status DecodeTexts(std::string_view message, const std::array<std::string*, kCount>& texts) {
  Decoder in(message);
  for (std::string* text : texts) *text = in.LengthPrefixed();
  return in.Finished() ? Status() : Malformed();
}

}  // namespace

std::string JoinHello::Encode() const {
  const std::string_view bytes(reinterpret_cast<const char*>(secret.data()), secret.size());
  return Encoder().Text(kMagic).U8(kJoinVersion).Text(bytes).Take();
}

Result<JoinHello> JoinHello::Decode(std::string_view message) {
  Decoder in(message);
  if (in.Text(kMagic.size()) != kMagic) return Malformed();
  const uint8_t version = in.U8();
  if (in.ok() && version != kJoinVersion) {
    return MakeError(
        ErrorCode::kNotSupported,
        fmt::format("this cluster speaks version {} of joining, and the host that joins version {}: the {} "
                    "has the older CairnFS, upgrade it",
                    kJoinVersion, version, version < kJoinVersion ? "host that joins" : "cluster"));
  }
  JoinHello hello;
  const std::string_view secret = in.Text(hello.secret.size());
  if (!in.Finished()) return Malformed();
  std::copy(secret.begin(), secret.end(), hello.secret.begin());
  return hello;
}

std::string JoinWelcome::Encode() const { return EncodeTexts<3>({filesystem, metadata, settings}); }

Result<JoinWelcome> JoinWelcome::Decode(std::string_view message) {
  JoinWelcome welcome;
  CAIRNFS_RETURN_IF_ERROR(DecodeTexts<3>(message, {&welcome.filesystem, &welcome.metadata, &welcome.settings}));
  return welcome;
}

std::string JoinRequest::Encode() const {
  return EncodeTexts<6>({node, name, address, certificate, proof.chain, proof.signature});
}

Result<JoinRequest> JoinRequest::Decode(std::string_view message) {
  JoinRequest request;
  CAIRNFS_RETURN_IF_ERROR(DecodeTexts<6>(message, {&request.node, &request.name, &request.address, &request.certificate,
                                                   &request.proof.chain, &request.proof.signature}));
  return request;
}

std::string JoinGrant::Encode() const { return EncodeTexts<2>({authority, chain}); }

Result<JoinGrant> JoinGrant::Decode(std::string_view message) {
  JoinGrant grant;
  CAIRNFS_RETURN_IF_ERROR(DecodeTexts<2>(message, {&grant.authority, &grant.chain}));
  return grant;
}

std::string EncodeAnswer(const Result<std::string>& answer) {
  if (answer.ok()) return Encoder().U8(kIsMessage).Text(*answer).Take();
  const Error& error = answer.error();
  return Encoder()
      .U8(kIsError)
      .LengthPrefixed(ErrorCodeName(error.code))
      .LengthPrefixed(error.message.substr(0, kErrorBytesMax))
      .Take();
}

Result<std::string> DecodeAnswer(std::string_view bytes) {
  Decoder in(bytes);
  const uint8_t kind = in.U8();
  if (in.ok() && kind == kIsMessage) return std::string(in.Rest());
  const auto code = ErrorCodeOfName(in.LengthPrefixed());
  const std::string_view message = in.LengthPrefixed();
  if (!in.Finished() || kind != kIsError || !code) return Malformed();
  return MakeError(*code, std::string(message));
}

}  // namespace cairnfs::admission
