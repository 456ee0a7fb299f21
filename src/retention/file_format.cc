#include "retention/file_format.h"

#include <algorithm>
#include <array>
#include <istream>
#include <nlohmann/json.hpp>
#include <streambuf>

#include "base/coding.h"

namespace cairnfs::retention {
namespace {

// The end of a zip file (APPNOTE.TXT 4.3): its directory; in one of zip64 another record and what leads to that; the
// end record, and a comment of up to 64 KiB. All lie side by side.
constexpr size_t kZipEndBytes = 22, kZipCommentBytesMax = 65535;
constexpr size_t kZip64EndBytes = 56, kZip64LocatorBytes = 20;
constexpr std::string_view kZipMagic("PK\3\4", 4), kZipDirectoryMagic("PK\1\2", 4), kZipEndMagic("PK\5\6", 4);
constexpr std::string_view kZip64EndMagic("PK\6\6", 4), kZip64LocatorMagic("PK\6\7", 4);
// Files with such names are zip files or pickles, of which none is shorter or begins with zeros.
constexpr std::array<std::string_view, 5> kSavedNames = {".pt", ".pth", ".ckpt", ".npz", ".keras"};
constexpr std::string_view kZeros("\0\0\0\0", 4);
// https://huggingface.co/docs/safetensors: u64 length of the header, the header in JSON, the bytes of the tensors.
constexpr size_t kSafetensorsLengthBytes = 8;
constexpr uint64_t kSafetensorsHeaderMax = 100'000'000;
constexpr std::string_view kMetadata = "__metadata__";

// The last bytes of a file.
struct Tail {
  std::string bytes;
  uint64_t begin = 0;  // where they begin in the file

  bool Has(size_t at, std::string_view magic) const { return bytes.compare(at, magic.size(), magic) == 0; }
  Decoder From(size_t at) const { return Decoder(std::string_view(bytes).substr(at)); }
};

struct ZipDirectory {
  uint64_t size = 0, offset = 0;
  bool EndsAt(uint64_t end) const { return size <= end && offset == end - size; }
};

// The directory that the end record at `at` names. nullopt: it is no whole end record, or the directory does not lie
// right before it, as that of a zip file that is stored in this one does not.
std::optional<ZipDirectory> DirectoryOf(const Tail& tail, size_t at) {
  constexpr size_t kSizesAt = 12, kZip64SizesAt = 40, kZip64PlaceAt = 8;
  if (tail.bytes.size() - at < kZipEndBytes) return std::nullopt;
  Decoder end = tail.From(at + kSizesAt);
  ZipDirectory directory{.size = end.U32(), .offset = end.U32()};
  const size_t comment_bytes = end.U16();
  if (comment_bytes > tail.bytes.size() - at - kZipEndBytes) return std::nullopt;
  if (directory.EndsAt(tail.begin + at)) return directory;
  if (at < kZip64EndBytes + kZip64LocatorBytes) return std::nullopt;
  const size_t locator = at - kZip64LocatorBytes, record = locator - kZip64EndBytes;
  if (!tail.Has(locator, kZip64LocatorMagic) || !tail.Has(record, kZip64EndMagic)) return std::nullopt;
  if (tail.From(locator + kZip64PlaceAt).U64() != tail.begin + record) return std::nullopt;
  Decoder sizes = tail.From(record + kZip64SizesAt);
  directory = {.size = sizes.U64(), .offset = sizes.U64()};
  return directory.EndsAt(tail.begin + record) ? std::optional(directory) : std::nullopt;
}

// Of the last end record that names one: a comment may have the same bytes.
std::optional<ZipDirectory> FindDirectory(const Tail& tail) {
  size_t at = tail.bytes.rfind(kZipEndMagic);
  while (at != std::string::npos) {
    if (const auto directory = DirectoryOf(tail, at)) return directory;
    at = at == 0 ? std::string::npos : tail.bytes.rfind(kZipEndMagic, at - 1);
  }
  return std::nullopt;
}

std::optional<std::string> WhyNoZip(uint64_t size, const ReadAt& read) {
  constexpr uint64_t kTailBytesMax = kZip64EndBytes + kZip64LocatorBytes + kZipEndBytes + kZipCommentBytesMax;
  const size_t tail_bytes = std::min(size, kTailBytesMax);
  auto bytes = read(size - tail_bytes, tail_bytes);
  if (!bytes.ok()) return bytes.error().message;
  const auto directory = FindDirectory({.bytes = *std::move(bytes), .begin = size - tail_bytes});
  if (!directory) return "it begins as a zip file, and its directory at the end is missing: it is cut short";
  const auto magic = read(directory->offset, kZipDirectoryMagic.size());
  if (!magic.ok()) return magic.error().message;
  if (directory->size == 0 || *magic == kZipDirectoryMagic) return std::nullopt;
  return "it begins as a zip file, and something else lies where its directory is to be";
}

// A part of the file as a stream, of which only a piece is in memory.
class FilePart : public std::streambuf {
 public:
  FilePart(uint64_t begin, uint64_t end, const ReadAt& read) : at_(begin), end_(end), read_(read) {}
  const std::optional<Error>& error() const { return error_; }

 protected:
  int_type underflow() override {
    constexpr uint64_t kPieceBytes = 1 << 20;
    if (at_ == end_ || error_) return traits_type::eof();
    auto piece = read_(at_, std::min(kPieceBytes, end_ - at_));
    if (!piece.ok()) error_ = piece.error();
    if (!piece.ok() || piece->empty()) return traits_type::eof();
    piece_ = *std::move(piece);
    at_ += piece_.size();
    setg(piece_.data(), piece_.data(), piece_.data() + piece_.size());
    return traits_type::to_int_type(piece_.front());
  }

 private:
  uint64_t at_;
  const uint64_t end_;
  const ReadAt& read_;
  std::string piece_;
  std::optional<Error> error_;
};

// The header of safetensors, read without keeping it: an object of tensors, each with "data_offsets": [begin, end].
class SafetensorsHeader : public nlohmann::json_sax<nlohmann::json> {
 public:
  uint64_t end() const { return end_; }  // of the last tensor
  const std::string& why() const { return why_; }

  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(number_integer_t) override { return Value(); }
  bool number_float(number_float_t, const string_t&) override { return Value(); }
  bool string(string_t&) override { return Value(); }
  bool binary(binary_t&) override { return false; }
  bool number_unsigned(number_unsigned_t value) override {
    if (!IsInOffsets()) return Value();
    if (offsets_++ == 1) end_ = std::max<uint64_t>(end_, value);
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ == 1 && !IsMetadata()) offsets_ = 0;
    const bool is_whole = depth_ == 0 || depth_ > 1 || Value(Kind::kObject);
    depth_++;
    return is_whole;
  }
  bool end_object() override {
    depth_--;
    if (depth_ != 1 || IsMetadata() || offsets_ == 2) return true;
    return Wrong();
  }
  bool start_array(size_t) override {
    if (depth_ < 2 && !Value()) return false;
    is_offsets_ = depth_ == 2 && key_ == "data_offsets" && !IsMetadata();
    depth_++;
    return true;
  }
  bool end_array() override {
    depth_--;
    is_offsets_ = false;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) tensor_ = name;
    if (depth_ == 2) key_ = name;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    if (why_.empty()) why_ = "its safetensors header is no JSON";
    return false;
  }

 private:
  enum class Kind { kObject, kOther };
  bool IsMetadata() const { return tensor_ == kMetadata; }
  bool IsInOffsets() const { return is_offsets_ && depth_ == 3; }
  // The header is an object, and each tensor in it.
  bool Value(Kind kind = Kind::kOther) {
    if (depth_ == 0) why_ = "its safetensors header is no JSON";
    if (depth_ == 0) return false;
    if (depth_ == 1 && kind == Kind::kOther && !IsMetadata()) return Wrong();
    if (IsInOffsets()) return Wrong();
    return true;
  }
  bool Wrong() {
    constexpr size_t kNameBytesMax = 100;
    why_ = "its safetensors header does not say where tensor '" + tensor_.substr(0, kNameBytesMax) + "' lies";
    return false;
  }

  size_t depth_ = 0;    // of objects and arrays
  size_t offsets_ = 0;  // of this tensor, so far
  bool is_offsets_ = false;
  std::string tensor_, key_;
  uint64_t end_ = 0;
  std::string why_;
};

std::optional<std::string> WhyNoSafetensors(uint64_t size, const ReadAt& read) {
  const auto length = read(0, kSafetensorsLengthBytes);
  if (!length.ok()) return length.error().message;
  if (std::min<uint64_t>(size, length->size()) < kSafetensorsLengthBytes) {
    return "it is shorter than the length of a safetensors header: it is cut short";
  }
  const uint64_t header_bytes = Decoder(*length).U64();
  if (header_bytes > kSafetensorsHeaderMax) return "its safetensors header would have more than 100 MB";
  if (header_bytes > size - kSafetensorsLengthBytes) {
    return "it is shorter than its safetensors header: it is cut short";
  }
  FilePart part(kSafetensorsLengthBytes, kSafetensorsLengthBytes + header_bytes, read);
  std::istream stream(&part);
  SafetensorsHeader header;
  const bool is_sound = nlohmann::json::sax_parse(stream, &header);
  if (part.error()) return part.error()->message;
  if (!is_sound) return header.why();
  const uint64_t held = size - kSafetensorsLengthBytes - header_bytes;
  if (held >= header.end()) return std::nullopt;
  return "its tensors have " + std::to_string(header.end()) + " bytes, and " + std::to_string(held) +
         " are there: it is cut short";
}

}  // namespace

std::optional<std::string> WhyCutShort(std::string_view name, uint64_t size, const ReadAt& read) {
  if (name.ends_with(".safetensors")) return WhyNoSafetensors(size, read);
  const auto begin = read(0, kZipMagic.size());
  if (!begin.ok()) return begin.error().message;
  if (*begin == kZipMagic) return WhyNoZip(size, read);
  const auto ends_name = [&](std::string_view end) { return name.ends_with(end); };
  if (std::none_of(kSavedNames.begin(), kSavedNames.end(), ends_name)) return std::nullopt;
  if (begin->size() < kZipMagic.size()) return "it has " + std::to_string(size) + " bytes: it is cut short";
  if (*begin == kZeros) return "it begins with zeros: its beginning was not written";
  return std::nullopt;
}

}  // namespace cairnfs::retention
