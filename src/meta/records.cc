// Encodings of the namespace's keys and values. Every value ends in a length-prefixed or fixed-width field, so a
// truncated one never decodes.
#include "meta/records.h"

#include <sys/stat.h>

#include "base/coding.h"

namespace cairnfs::meta {
namespace {

constexpr uint8_t kRecordVersion = 1;
constexpr uint8_t kInodeWithParent = 2;  // record version of what is no directory and names one all the same
constexpr uint8_t kInodeWithSeal = 3;    // record version of a directory that has one
constexpr uint8_t kInQuota = 3;          // added to the version of an inode record that names a quota
constexpr uint8_t kFileInQuota = 2;      // record version of a file that counts for one
constexpr std::string_view kHeaderMagic = "CairnFS\n";
constexpr size_t kUuidBytes = 16;

Error Corrupt(std::string_view record, std::string_view why) {
  return MakeError(ErrorCode::kCorrupt, std::string(record) + " does not decode: " + std::string(why));
}

bool IsFileType(uint32_t type) {
  switch (type) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK:
    case S_IFCHR:
    case S_IFBLK:
    case S_IFIFO:
    case S_IFSOCK: return true;
    default: return false;
  }
}

std::string KeyOf(char kind, InodeId inode) {
  return Encoder().U8(static_cast<uint8_t>(kind)).BigEndianU64(inode.value).Take();
}

std::string KeyOf(char kind, InodeId inode, std::string_view name) {
  return Encoder().U8(static_cast<uint8_t>(kind)).BigEndianU64(inode.value).Text(name).Take();
}

}  // namespace

std::string InodeRecord::Encode() const {
  const bool is_directory = (mode & S_IFMT) == S_IFDIR;
  const bool names_parent = parent.value != 0 && !is_directory;
  const uint8_t version = seal != SealState::kNone ? kInodeWithSeal : names_parent ? kInodeWithParent : kRecordVersion;
  Encoder encoder;
  encoder.U8(quota.value != 0 ? version + kInQuota : version)
      .U32(mode)
      .U32(uid)
      .U32(gid)
      .U32(nlink)
      .U64(rdev)
      .Time(atime)
      .Time(mtime)
      .Time(ctime)
      .U64(parent.value)
      .LengthPrefixed(symlink_target);
  if (seal != SealState::kNone) encoder.U8(static_cast<uint8_t>(seal)).U64(seal_mark);
  if (quota.value != 0) encoder.U64(quota.value);
  return encoder.Take();
}

Result<InodeRecord> InodeRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  InodeRecord record;
  uint8_t version = decoder.U8();
  const bool has_quota = version > kInQuota;
  if (has_quota) version -= kInQuota;
  record.mode = decoder.U32();
  record.uid = decoder.U32();
  record.gid = decoder.U32();
  record.nlink = decoder.U32();
  record.rdev = decoder.U64();
  record.atime = decoder.Time();
  record.mtime = decoder.Time();
  record.ctime = decoder.Time();
  record.parent.value = decoder.U64();
  record.symlink_target = decoder.LengthPrefixed();
  const uint8_t seal = version == kInodeWithSeal ? decoder.U8() : 0;
  if (version == kInodeWithSeal) record.seal_mark = decoder.U64();
  if (has_quota) record.quota.value = decoder.U64();
  if (!decoder.Finished()) return Corrupt("inode record", "it is cut short or too long");
  if (version != kRecordVersion && version != kInodeWithParent && version != kInodeWithSeal) {
    return Corrupt("inode record", "unknown record version");
  }
  if ((seal == 0) == (version == kInodeWithSeal) || seal > static_cast<uint8_t>(kSealStateMax)) {
    return Corrupt("inode record", "unknown state of a seal");
  }
  record.seal = static_cast<SealState>(seal);
  const uint32_t type = record.mode & S_IFMT;
  if (!IsFileType(type) || (record.mode & ~uint32_t{S_IFMT | 07777}) != 0) {
    return Corrupt("inode record", "its mode is none of a file");
  }
  const bool has_parent = type == S_IFDIR || version == kInodeWithParent;
  if (has_parent != (record.parent.value != 0) || (type == S_IFDIR && version == kInodeWithParent) ||
      (type != S_IFDIR && seal != 0)) {
    return Corrupt("inode record", "parent and type disagree");
  }
  if (has_quota != (record.quota.value != 0) || (has_quota && type != S_IFDIR && type != S_IFREG)) {
    return Corrupt("inode record", "quota and type disagree");
  }
  if ((type == S_IFLNK) == record.symlink_target.empty()) {
    return Corrupt("inode record", "symlink target and type disagree");
  }
  return record;
}

std::string FileRecord::Encode() const {
  const bool counts = quota.value != 0;
  Encoder encoder;
  encoder.U8(counts ? kFileInQuota : kRecordVersion).U64(size).U64(allocated_bytes).Time(mtime).Time(ctime);
  if (counts) encoder.U64(unique_bytes).U64(quota.value);
  return encoder.LengthPrefixed(recipe).Take();
}

Result<FileRecord> FileRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  FileRecord record;
  const uint8_t version = decoder.U8();
  record.size = decoder.U64();
  record.allocated_bytes = decoder.U64();
  record.mtime = decoder.Time();
  record.ctime = decoder.Time();
  // Without a quota nobody counts what is new of it: all of it may be.
  const bool counts = version == kFileInQuota;
  record.unique_bytes = counts ? decoder.U64() : record.allocated_bytes;
  if (counts) record.quota.value = decoder.U64();
  record.recipe = decoder.LengthPrefixed();
  if (!decoder.Finished()) return Corrupt("file record", "it is cut short or too long");
  if (version != kRecordVersion && !counts) return Corrupt("file record", "unknown record version");
  if (counts && record.quota.value == 0) return Corrupt("file record", "it counts for a quota and names none");
  if (record.size > kFileSizeMax) return Corrupt("file record", "its size is past the largest");
  if (record.unique_bytes > record.allocated_bytes) {
    return Corrupt("file record", "more of its bytes were new than it has");
  }
  return record;
}

namespace {

constexpr uint8_t kMarkVersion = 3;
constexpr uint8_t kOldestMarkVersion = 1;  // versions 1 and 2 also told what was written, after the session

}  // namespace

std::string UnpublishedMark::Encode() const {
  return Encoder().U8(kMarkVersion).U64(session).LengthPrefixed(failure).Take();
}

Result<UnpublishedMark> UnpublishedMark::Decode(std::string_view value) {
  Decoder decoder(value);
  UnpublishedMark mark;
  const uint8_t version = decoder.U8();
  mark.session = decoder.U64();
  if (!decoder.ok()) return Corrupt("mark of an unpublished file", "it is cut short");
  if (version < kOldestMarkVersion || version > kMarkVersion) {
    return Corrupt("mark of an unpublished file", "unknown record version");
  }
  if (version < kMarkVersion) return mark;
  mark.failure = decoder.LengthPrefixed();
  if (!decoder.Finished()) return Corrupt("mark of an unpublished file", "it is cut short or too long");
  return mark;
}

std::string LevelRecord::Encode() const { return Encoder().U8(kRecordVersion).U8(is_replicated ? 1 : 0).Take(); }

Result<LevelRecord> LevelRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8(), is_replicated = decoder.U8();
  if (!decoder.Finished()) return Corrupt("level", "it is cut short or too long");
  if (version != kRecordVersion) return Corrupt("level", "unknown record version");
  if (is_replicated > 1) return Corrupt("level", "a flag is neither 0 nor 1");
  return LevelRecord{is_replicated == 1};
}

namespace {

// Of AtomicRecord::must_be_complete.
enum CompleteByte : uint8_t { kNotSet = 0, kOff = 1, kOn = 2 };

}  // namespace

std::string AtomicRecord::Encode() const {
  const CompleteByte complete = !must_be_complete ? kNotSet : (*must_be_complete ? kOn : kOff);
  return Encoder()
      .U8(kRecordVersion)
      .U8(complete)
      .U8(patterns ? 1 : 0)
      .LengthPrefixed(patterns.value_or(std::string()))
      .Take();
}

Result<AtomicRecord> AtomicRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  AtomicRecord record;
  const uint8_t version = decoder.U8(), complete = decoder.U8(), has_patterns = decoder.U8();
  std::string patterns(decoder.LengthPrefixed());
  if (!decoder.Finished()) return Corrupt("rule of files that appear whole", "it is cut short or too long");
  if (version != kRecordVersion) return Corrupt("rule of files that appear whole", "unknown record version");
  if (complete > kOn || has_patterns > 1 || (has_patterns == 0 && !patterns.empty())) {
    return Corrupt("rule of files that appear whole", "a flag has no such value");
  }
  if (has_patterns == 1) record.patterns = std::move(patterns);
  if (complete != kNotSet) record.must_be_complete = complete == kOn;
  return record;
}

std::string DentryRecord::Encode() const { return Encoder().U8(kRecordVersion).U64(inode.value).U32(type).Take(); }

Result<DentryRecord> DentryRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  DentryRecord record;
  const uint8_t version = decoder.U8();
  record.inode.value = decoder.U64();
  record.type = decoder.U32();
  if (!decoder.Finished()) return Corrupt("directory entry", "it is cut short or too long");
  if (version != kRecordVersion) return Corrupt("directory entry", "unknown record version");
  if (record.inode.value == 0) return Corrupt("directory entry", "it names inode 0");
  if (!IsFileType(record.type)) return Corrupt("directory entry", "its type is none of a file");
  return record;
}

std::string DirectoryTimes::Encode() const { return Encoder().U8(kRecordVersion).Time(mtime).Time(ctime).Take(); }

Result<DirectoryTimes> DirectoryTimes::Decode(std::string_view value) {
  Decoder decoder(value);
  DirectoryTimes record;
  const uint8_t version = decoder.U8();
  record.mtime = decoder.Time();
  record.ctime = decoder.Time();
  if (!decoder.Finished()) return Corrupt("directory times", "they are cut short or too long");
  if (version != kRecordVersion) return Corrupt("directory times", "unknown record version");
  return record;
}

std::string FilesystemHeader::Encode() const {
  std::string id = uuid;
  id.resize(kUuidBytes, '\0');
  const uint32_t version = std::max<uint32_t>(format_version, dedup == Dedup::kMount ? 1 : 2);
  Encoder encoder;
  encoder.Text(kHeaderMagic).U32(version).Text(id).Time(created).LengthPrefixed(chunk_params);
  if (version > 1) encoder.U8(static_cast<uint8_t>(dedup));
  return encoder.Take();
}

Result<FilesystemHeader> FilesystemHeader::Decode(std::string_view value) {
  Decoder decoder(value);
  FilesystemHeader header;
  const std::string_view magic = decoder.Text(kHeaderMagic.size());
  const uint32_t version = header.format_version = decoder.U32();
  if (!decoder.ok() || magic != kHeaderMagic || version == 0) {
    return Corrupt("filesystem header", "it does not begin as one");
  }
  if (version > kFormatVersion) {
    return MakeError(ErrorCode::kNotSupported, "the filesystem has format version " + std::to_string(version) +
                                                   ", and this program knows versions up to " +
                                                   std::to_string(kFormatVersion) + ": use a newer program");
  }
  header.uuid = decoder.Text(kUuidBytes);
  header.created = decoder.Time();
  header.chunk_params = decoder.LengthPrefixed();
  const uint8_t dedup = version > 1 ? decoder.U8() : 0;
  if (!decoder.Finished()) return Corrupt("filesystem header", "it is cut short or too long");
  if (dedup > static_cast<uint8_t>(Dedup::kOwner)) return Corrupt("filesystem header", "it names no way of dedup");
  header.dedup = static_cast<Dedup>(dedup);
  return header;
}

std::string HeaderKey() { return "H"; }
std::string InodeKey(InodeId inode) { return KeyOf('I', inode); }
std::string FileKey(InodeId inode) { return KeyOf('D', inode); }
std::string DentryKey(InodeId parent, std::string_view name) { return KeyOf('E', parent, name); }
std::optional<InodeId> ParentOfDentryKey(std::string_view key) {
  Decoder decoder(key);
  const char letter = static_cast<char>(decoder.U8());
  const InodeId parent{decoder.BigEndianU64()};
  if (letter != 'E' || !decoder.ok() || decoder.remaining() == 0) return std::nullopt;
  return parent;
}

std::string DentryPrefix(InodeId parent) { return KeyOf('E', parent); }
std::string DirectoryTimesKey(InodeId inode) { return KeyOf('T', inode); }
std::string XattrKey(InodeId inode, std::string_view name) { return KeyOf('X', inode, name); }
std::string XattrPrefix(InodeId inode) { return KeyOf('X', inode); }
std::string OrphanKey(InodeId inode) { return KeyOf('O', inode); }
std::string LevelKey(InodeId directory) { return KeyOf('Y', directory); }
std::string LevelsPrefix() { return "Y"; }
std::optional<InodeId> InodeOfLevelKey(std::string_view key) { return InodeOfKey(key, LevelsPrefix()); }
std::string AtomicKey(InodeId directory) { return AtomicsPrefix() + KeyOf('\0', directory).substr(1); }
std::string AtomicsPrefix() { return "VW"; }
std::optional<InodeId> InodeOfAtomicKey(std::string_view key) {
  const std::string prefix = AtomicsPrefix();
  return key.starts_with(prefix) ? InodeOfKey(key.substr(prefix.size() - 1), prefix.substr(1)) : std::nullopt;
}
std::string MarkKey(InodeId inode, std::string_view node, uint64_t session) {
  return KeyOf('P', inode, Encoder().Text(node).BigEndianU64(session).Take());
}
std::string MarkPrefix(InodeId inode) { return KeyOf('P', inode); }
std::string ClusterSettingsKey() { return "C"; }
std::string MoveKey() { return "V"; }
std::string FreedBytesKey() { return "G"; }
std::string NextInodeKey() { return "N"; }

std::optional<MarkKeyParts> DecodeMarkKey(std::string_view key) {
  Decoder decoder(key);
  const char kind = static_cast<char>(decoder.U8());
  MarkKeyParts parts;
  parts.inode.value = decoder.BigEndianU64();
  parts.node = decoder.Text(kNodeIdBytes);
  // Marks of versions 1 and 2 have no session in their key.
  const std::string_view rest = decoder.Rest();
  const bool is_sound = rest.empty() || rest.size() == sizeof(uint64_t);
  if (!decoder.ok() || !is_sound || kind != 'P') return std::nullopt;
  return parts;
}

std::optional<InodeId> InodeOfKey(std::string_view key, std::string_view letters) {
  Decoder decoder(key);
  const char letter = static_cast<char>(decoder.U8());
  const InodeId inode{decoder.BigEndianU64()};
  if (!decoder.Finished() || letters.find(letter) == std::string_view::npos) return std::nullopt;
  return inode;
}

}  // namespace cairnfs::meta
