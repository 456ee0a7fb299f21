#include "retention/file_format.h"

#include <algorithm>
#include <array>
#include <istream>
#include <nlohmann/json.hpp>
#include <span>
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
constexpr uint64_t kZipDirectoryLookedAtMax = 100'000'000;
// torch.distributed writes one zip file for each tensor, one after the other; a rank without any leaves an empty file.
constexpr std::string_view kSeriesName = ".distcp";
// Files with such names are zip files, pickles, arrays or JSON, of which none is shorter or begins with zeros.
constexpr size_t kSavedBytesMin = 4;
constexpr std::array<std::string_view, 7> kSavedNames = {".pt",    ".pth", ".ckpt",      ".npz",
                                                         ".keras", ".npy", ".index.json"};
// Of these all that can be told is that none is empty: a user block of zeros may lie before HDF5.
constexpr std::array<std::string_view, 3> kFilledNames = {".h5", ".hdf5", ".msgpack"};
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

// One zip file in a file: its places in that.
struct Archive {
  uint64_t begin = 0, directory = 0, directory_end = 0;
};

// Whose directory has `size` bytes, lies `offset` from its begin, and ends at `end`. nullopt: nowhere.
std::optional<Archive> ArchiveOf(uint64_t size, uint64_t offset, uint64_t end) {
  if (size > end || offset > end - size) return std::nullopt;
  return Archive{.begin = end - size - offset, .directory = end - size, .directory_end = end};
}

std::optional<Archive> Zip64ArchiveOf(const Tail& tail, size_t end_record) {
  constexpr size_t kSizesAt = 40, kPlaceAt = 8;
  if (end_record < kZip64EndBytes + kZip64LocatorBytes) return std::nullopt;
  const size_t locator = end_record - kZip64LocatorBytes, record = locator - kZip64EndBytes;
  if (!tail.Has(locator, kZip64LocatorMagic) || !tail.Has(record, kZip64EndMagic)) return std::nullopt;
  Decoder sizes = tail.From(record + kSizesAt);
  const uint64_t size = sizes.U64(), offset = sizes.U64();
  const auto archive = ArchiveOf(size, offset, tail.begin + record);
  const uint64_t place = tail.From(locator + kPlaceAt).U64();
  return archive && place == tail.begin + record - archive->begin ? archive : std::nullopt;
}

enum class Holds {
  kOneArchive,  // from its begin on
  kSeries,      // one after the other, up to its end
};

// The archive that the end record at `at` names. nullopt: it is no whole end record, or the archive does not begin
// where it has to, as that of a zip file that is stored in this one does not.
std::optional<Archive> ArchiveOfEnd(const Tail& tail, size_t at, Holds holds) {
  constexpr size_t kSizesAt = 12;
  if (tail.bytes.size() - at < kZipEndBytes) return std::nullopt;
  Decoder end = tail.From(at + kSizesAt);
  const uint64_t size = end.U32(), offset = end.U32();
  const size_t comment_bytes = end.U16(), bytes_left = tail.bytes.size() - at - kZipEndBytes;
  if (comment_bytes > bytes_left || (holds == Holds::kSeries && comment_bytes < bytes_left)) return std::nullopt;
  for (const auto& archive : {Zip64ArchiveOf(tail, at), ArchiveOf(size, offset, tail.begin + at)}) {
    if (archive && (archive->begin == 0 || holds == Holds::kSeries)) return archive;
  }
  return std::nullopt;
}

// Of the last end record that names one: a comment may have the same bytes.
std::optional<Archive> FindArchive(const Tail& tail, Holds holds) {
  size_t at = tail.bytes.rfind(kZipEndMagic);
  while (at != std::string::npos) {
    if (const auto archive = ArchiveOfEnd(tail, at, holds)) return archive;
    at = at == 0 ? std::string::npos : tail.bytes.rfind(kZipEndMagic, at - 1);
  }
  return std::nullopt;
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

// Whether entry follows entry in the directory of a zip file.
std::optional<std::string> WhyNoDirectory(const Archive& archive, const ReadAt& read) {
  constexpr size_t kEntryBytes = 46, kLengthsAt = 28;
  FilePart part(archive.directory, archive.directory_end, read);
  std::istream stream(&part);
  std::string entry(kEntryBytes, '\0');
  uint64_t at = archive.directory;
  const uint64_t end =
      archive.directory + std::min(archive.directory_end - archive.directory, kZipDirectoryLookedAtMax);
  bool is_sound = true;
  while (is_sound && at < end) {
    stream.read(entry.data(), kEntryBytes);
    Decoder lengths(std::string_view(entry).substr(kLengthsAt));
    const int bytes_left = lengths.U16() + lengths.U16() + lengths.U16();  // name, extra field, comment
    stream.ignore(bytes_left);
    at += kEntryBytes + static_cast<uint64_t>(bytes_left);
    is_sound = !stream.fail() && entry.starts_with(kZipDirectoryMagic) && at <= archive.directory_end;
  }
  if (part.error()) return part.error()->message;
  if (is_sound) return std::nullopt;
  return "it begins as a zip file, and something else lies where its directory is to be";
}

std::optional<std::string> WhyNoZip(uint64_t size, Holds holds, const ReadAt& read) {
  constexpr uint64_t kTailBytesMax = kZip64EndBytes + kZip64LocatorBytes + kZipEndBytes + kZipCommentBytesMax;
  const size_t tail_bytes = std::min(size, kTailBytesMax);
  auto bytes = read(size - tail_bytes, tail_bytes);
  if (!bytes.ok()) return bytes.error().message;
  const auto archive = FindArchive({.bytes = *std::move(bytes), .begin = size - tail_bytes}, holds);
  const auto magic = read(archive ? archive->begin : 0, kZipMagic.size());
  if (!magic.ok()) return magic.error().message;
  if (!archive || *magic != kZipMagic) {
    return "it begins as a zip file, and its directory at the end is missing: it is cut short";
  }
  return WhyNoDirectory(*archive, read);
}

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

bool HasEnd(std::string_view name, std::span<const std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

// What transformers saves by torch.save: pytorch_model.bin, or pytorch_model-00001-of-00003.bin.
bool IsTransformersModel(std::string_view name) {
  const size_t slash = name.rfind('/');
  const std::string_view last = slash == std::string_view::npos ? name : name.substr(slash + 1);
  return last.starts_with("pytorch_model") && last.ends_with(".bin");
}

}  // namespace

std::optional<std::string> WhyCutShort(std::string_view name, uint64_t size, const ReadAt& read) {
  if (name.ends_with(".safetensors")) return WhyNoSafetensors(size, read);
  const auto begin = read(0, kZipMagic.size());
  if (!begin.ok()) return begin.error().message;
  if (*begin == kZipMagic) {
    return WhyNoZip(size, name.ends_with(kSeriesName) ? Holds::kSeries : Holds::kOneArchive, read);
  }
  const bool is_saved = HasEnd(name, kSavedNames) || IsTransformersModel(name);
  const bool is_too_short = is_saved ? begin->size() < kSavedBytesMin : HasEnd(name, kFilledNames) && begin->empty();
  if (is_too_short) return "it has " + std::to_string(size) + " bytes: it is cut short";
  if (is_saved && *begin == kZeros) return "it begins with zeros: its beginning was not written";
  return std::nullopt;
}

}  // namespace cairnfs::retention
