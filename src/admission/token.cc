#include "admission/token.h"

#include <openssl/sha.h>

#include <algorithm>
#include <optional>

#include "base/clock.h"
#include "base/hex.h"
#include "base/random_bytes.h"

namespace cairnfs::admission {
namespace {

constexpr std::string_view kTokenBegin = "cairn-";
constexpr size_t kChecksumBytes = 4;

Fingerprint Sha256(std::string_view bytes) {
  Fingerprint hash{};
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), hash.data());
  return hash;
}

template <typename Bytes>
std::string_view AsText(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string ChecksumOf(std::string_view bytes) { return std::string(AsText(Sha256(bytes)).substr(0, kChecksumBytes)); }

}  // namespace

std::string Token::Text() const {
  std::string bytes = std::string(AsText(secret)).append(AsText(authority));
  bytes += ChecksumOf(bytes);
  return std::string(kTokenBegin) + ToHex(bytes);
}

Result<Token> Token::Parse(std::string_view text) {
  Token token;
  const size_t content_bytes = token.secret.size() + token.authority.size();
  const auto bytes = text.starts_with(kTokenBegin) ? FromHex(text.substr(kTokenBegin.size())) : std::nullopt;
  if (!bytes || bytes->size() != content_bytes + kChecksumBytes ||
      bytes->substr(content_bytes) != ChecksumOf(bytes->substr(0, content_bytes))) {
    return InvalidArgument("the token is cut short or mistyped: give all of what cairnfs cluster token printed");
  }
  std::copy_n(bytes->begin(), token.secret.size(), token.secret.begin());
  std::copy_n(bytes->begin() + static_cast<std::ptrdiff_t>(token.secret.size()), token.authority.size(),
              token.authority.begin());
  return token;
}

Result<Token> Tokens::Make(const Fingerprint& authority, std::chrono::seconds life) {
  Token token;
  token.authority = authority;
  const std::string secret = RandomBytes(token.secret.size());
  std::copy(secret.begin(), secret.end(), token.secret.begin());
  MutexLock lock(mutex_);
  DropOld();
  if (until_.size() >= kTokensMax) {
    return MakeError(ErrorCode::kExhausted, "too many tokens are out that nobody has used: wait until they expire");
  }
  until_[Sha256(secret)] = Clock::SinceBoot() + life;
  return token;
}

bool Tokens::IsGood(const Secret& secret) const {
  MutexLock lock(mutex_);
  DropOld();
  return until_.contains(Sha256(AsText(secret)));
}

std::optional<Tokens::Until> Tokens::Use(const Secret& secret) {
  MutexLock lock(mutex_);
  DropOld();
  const auto found = until_.find(Sha256(AsText(secret)));
  if (found == until_.end()) return std::nullopt;
  const Until until = found->second;
  until_.erase(found);
  return until;
}

void Tokens::PutBack(const Secret& secret, Until until) {
  MutexLock lock(mutex_);
  until_[Sha256(AsText(secret))] = until;
}

void Tokens::DropOld() const {
  std::erase_if(until_, [now = Clock::SinceBoot()](const auto& token) { return token.second <= now; });
}

}  // namespace cairnfs::admission
