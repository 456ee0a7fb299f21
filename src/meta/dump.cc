#include "meta/dump.h"

#include <fmt/format.h>
#include <zstd.h>

#include <cassert>
#include <cstring>

#include "base/coding.h"
#include "meta/access.h"
#include "meta/commit_record.h"
#include "meta/policy_records.h"
#include "meta/quota_records.h"
#include "meta/records.h"

namespace cairnfs::meta {
namespace {

constexpr std::string_view kDumpMagic = "CairnDmp";
constexpr size_t kFileHeaderBytes = 16, kBlockHeaderBytes = 32, kBlockCheckBytes = 8;
constexpr uint8_t kHeadBlock = 1, kEntriesBlock = 2, kEndBlock = 3;
constexpr size_t kBlockPayloadBytes = 1 << 20;      // a block is ended when it has as many
constexpr size_t kBlockPayloadBytesMax = 16 << 20;  // more is damage
constexpr int kCompressionLevel = 3;

std::string_view AsText(ByteSpan bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
ByteSpan AsBytes(std::string_view text) { return {reinterpret_cast<const std::byte*>(text.data()), text.size()}; }

// Of the block header before its check, and the payload as it is stored.
std::string CheckOf(std::string_view header, std::string_view stored) {
  chunking::Digester digester;
  const Digest digest = digester.Update(AsBytes(header)).Update(AsBytes(stored)).Finish();
  return std::string(AsText(ByteSpan(digest.bytes).first(kBlockCheckBytes)));
}

Error DamagedDump(uint64_t offset, const std::string& what) {
  return MakeError(ErrorCode::kCorrupt, fmt::format("the dump is damaged at byte {}: {}", offset, what));
}

Error CutDump(uint64_t offset) {
  return MakeError(ErrorCode::kCorrupt,
                   fmt::format("the dump is cut off at byte {}: it goes on after that, and has no end", offset));
}

struct DumpBlock {
  uint8_t kind = 0;
  std::string payload;
  std::string bytes;  // as they are in the file
  uint64_t offset = 0, next = 0;
};

Result<DumpBlock> ReadBlock(const DumpSource& source, uint64_t offset) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::string header, source(offset, kBlockHeaderBytes));
  if (header.size() < kBlockHeaderBytes) return CutDump(offset + header.size());
  Decoder decoder(header);
  const uint32_t stored_bytes = decoder.U32(), payload_bytes = decoder.U32();
  DumpBlock block;
  block.kind = decoder.U8();
  const std::string_view zeros = decoder.Text(7);
  block.offset = decoder.U64();
  const std::string_view check = decoder.Rest();
  const bool is_sound = block.offset == offset && zeros == std::string_view("\0\0\0\0\0\0\0", 7) &&
                        payload_bytes <= kBlockPayloadBytesMax && stored_bytes <= ZSTD_COMPRESSBOUND(payload_bytes);
  if (!is_sound) return DamagedDump(offset, "no block begins there");
  CAIRNFS_ASSIGN_OR_RETURN(const std::string stored, source(offset + kBlockHeaderBytes, stored_bytes));
  if (stored.size() < stored_bytes) return CutDump(offset + kBlockHeaderBytes + stored.size());
  const std::string_view checked = std::string_view(header).substr(0, kBlockHeaderBytes - kBlockCheckBytes);
  if (CheckOf(checked, stored) != check) return DamagedDump(offset, "the checksum of this block does not match");
  block.payload.resize(payload_bytes);
  const size_t size = ZSTD_decompress(block.payload.data(), block.payload.size(), stored.data(), stored.size());
  if (ZSTD_isError(size) != 0 || size != payload_bytes) return DamagedDump(offset, "this block does not decompress");
  block.bytes = header + stored;
  block.next = offset + block.bytes.size();
  return block;
}

Result<uint64_t> ReadFileHeader(const DumpSource& source) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::string header, source(0, kFileHeaderBytes));
  if (!std::string_view(header).starts_with(kDumpMagic)) {
    return MakeError(ErrorCode::kCorrupt, "this is no dump of CairnFS: it does not begin as one");
  }
  if (header.size() < kFileHeaderBytes) return CutDump(header.size());
  Decoder decoder(std::string_view(header).substr(kDumpMagic.size()));
  const uint32_t version = decoder.U32(), zero = decoder.U32();
  if (version > DumpHead::kFormatVersion) {
    return MakeError(ErrorCode::kNotSupported,
                     fmt::format("the dump has format version {}, and this program reads versions up to {}: use a "
                                 "newer cairnfs",
                                 version, DumpHead::kFormatVersion));
  }
  if (version == 0 || zero != 0) return DamagedDump(kDumpMagic.size(), "the header of the file is wrong");
  return uint64_t{kFileHeaderBytes};
}

Result<DumpHead> DecodeHead(const DumpBlock& block) {
  Decoder decoder(block.payload);
  const uint8_t of = decoder.U8();
  DumpHead head;
  head.of = static_cast<DumpHead::Of>(of);
  head.filesystem = decoder.Text(16);
  head.taken = decoder.Time();
  head.program = decoder.LengthPrefixed();
  const bool is_known = head.of == DumpHead::Of::kHostAlone || head.of == DumpHead::Of::kCluster;
  if (block.kind == kHeadBlock && decoder.Finished() && is_known) return head;
  return DamagedDump(block.offset, "its first block does not say what it is of");
}

// Visits the entries of one block after another, and sees to it that they are those of a filesystem.
class DumpEntries {
 public:
  DumpEntries(const DumpHead& head, const DumpVisitor& visit) : head_(head), visit_(visit) {}

  Status Take(const DumpBlock& block) {
    Decoder decoder(block.payload);
    while (decoder.ok() && decoder.remaining() != 0) {
      const std::string_view key = decoder.LengthPrefixed(), value = decoder.LengthPrefixed();
      if (!decoder.ok()) break;
      if (count_ != 0 && key <= last_) return DamagedDump(block.offset, "its keys do not rise");
      const Status sound = CheckEntry(key, value);
      if (!sound.ok() && sound.error().code != ErrorCode::kCorrupt) return sound;
      if (!sound.ok()) return DamagedDump(block.offset, sound.error().message);
      CAIRNFS_RETURN_IF_ERROR(visit_(key, value));
      last_ = key;
      ++count_;
    }
    return decoder.ok() ? Status() : Status(DamagedDump(block.offset, "its entries do not decode"));
  }
  uint64_t count() const { return count_; }
  bool IsWhole() const { return has_header_ && has_root_ && has_next_inode_ && (!IsOfCluster() || has_settings_); }

 private:
  bool IsOfCluster() const { return head_.of == DumpHead::Of::kCluster; }
  Status CheckEntry(std::string_view key, std::string_view value) {
    CAIRNFS_RETURN_IF_ERROR(CheckDumpEntry(key, value));
    if (key == HeaderKey()) {
      CAIRNFS_ASSIGN_OR_RETURN(const FilesystemHeader header, FilesystemHeader::Decode(value));
      if (header.uuid != head_.filesystem) return MakeError(ErrorCode::kCorrupt, "it is of two filesystems");
      has_header_ = true;
    }
    has_root_ = has_root_ || key == InodeKey(kRootInode);
    has_next_inode_ = has_next_inode_ || key == NextInodeKey();
    has_settings_ = has_settings_ || key == ClusterSettingsKey();
    return {};
  }

  const DumpHead& head_;
  const DumpVisitor& visit_;
  std::string last_;
  uint64_t count_ = 0;
  bool has_header_ = false, has_root_ = false, has_next_inode_ = false, has_settings_ = false;
};

// REQUIRES: kind and length of the key are right.
Status CheckInodeNumber(std::string_view key) {
  Decoder decoder(key.substr(1));
  if (decoder.BigEndianU64() != 0) return {};
  return MakeError(ErrorCode::kCorrupt, "a key names inode 0");
}

template <typename Record>
Status CheckDecodes(std::string_view value) {
  const auto record = Record::Decode(value);
  return record.ok() ? Status() : Status(record.error());
}

Status CheckNumber(std::string_view value, uint64_t min) {
  Decoder decoder(value);
  const uint64_t number = decoder.U64();
  if (decoder.Finished() && number >= min && number <= INT64_MAX) return {};
  return MakeError(ErrorCode::kCorrupt, "a number does not decode");
}

Error StrangeKey(std::string_view key) {
  return MakeError(ErrorCode::kCorrupt, fmt::format("a key of kind {:#04x} and {} bytes does not belong in a dump",
                                                    static_cast<unsigned char>(key.empty() ? 0 : key[0]), key.size()));
}

}  // namespace

bool IsInDump(std::string_view key) {
  if (InodeOfQuotaKey(key) || InodeOfUsageKey(key)) return true;
  return !key.empty() && std::string_view("ACDEHIJNOPTVXYst").find(key[0]) != std::string_view::npos;
}

Status CheckDumpEntry(std::string_view key, std::string_view value) {
  constexpr size_t kInodeKeyBytes = 9, kNameBytesMax = 255, kXattrBytesMax = 64 * kKiB;
  if (!IsInDump(key)) return StrangeKey(key);
  if (InodeOfQuotaKey(key)) return CheckDecodes<QuotaRecord>(value);
  if (InodeOfUsageKey(key)) return CheckDecodes<UsageRecord>(value);
  if (key.size() == 1) {
    switch (key[0]) {
      case 'C': return {};
      case 'H': return CheckDecodes<FilesystemHeader>(value);
      case 'N': return CheckNumber(value, kRootInode.value + 1);
      case 's':
      case 'V': return CheckNumber(value, 0);
      default: return StrangeKey(key);
    }
  }
  if (key[0] == SealsKey()[0]) {
    const bool is_sound = InodeOfKey(key, SealsKey()) && value.empty();
    return is_sound ? Status() : Status(StrangeKey(key));
  }
  if (key[0] == kTrashLetter) {
    const auto parts = DecodeTrashKey(key);
    if (!parts) return StrangeKey(key);
    if (parts->removed_at_ns == 0) return value.empty() ? Status() : Status(StrangeKey(key));
    return CheckDecodes<TrashRecord>(value);
  }
  if (key.size() < kInodeKeyBytes) return StrangeKey(key);
  CAIRNFS_RETURN_IF_ERROR(CheckInodeNumber(key));
  const std::string_view name = key.substr(kInodeKeyBytes);
  if (key[0] == 'E') {
    const Status valid = ValidateName(name);
    return valid.ok() ? CheckDecodes<DentryRecord>(value) : Status(StrangeKey(key));
  }
  if (key[0] == 'X') {
    const bool is_sound = !name.empty() && name.size() <= kNameBytesMax && value.size() <= kXattrBytesMax;
    return is_sound ? Status() : Status(StrangeKey(key));
  }
  if (key[0] == 'P') return DecodeMarkKey(key) ? CheckDecodes<UnpublishedMark>(value) : Status(StrangeKey(key));
  if (key[0] == 'J' && name.size() == kNodeIdBytes) return CheckDecodes<CommitPart>(value);
  if (InodeOfAtomicKey(key)) return CheckDecodes<AtomicRecord>(value);
  if (InodeOfAppliedKey(key)) return CheckDecodes<AppliedRecord>(value);
  if (!name.empty()) return StrangeKey(key);
  switch (key[0]) {
    case 'A': return value == PolicyKeyValue() ? Status() : Status(StrangeKey(key));
    case 'D': return CheckDecodes<FileRecord>(value);
    case 'I': return CheckDecodes<InodeRecord>(value);
    case 'J': return CheckDecodes<CommitRecord>(value);
    case 'O': return value.empty() ? Status() : Status(StrangeKey(key));
    case 'T': return CheckDecodes<DirectoryTimes>(value);
    case 'Y': return CheckDecodes<LevelRecord>(value);
    default: return StrangeKey(key);
  }
}

Status DumpWriter::WriteBytes(std::string_view bytes) {
  digester_.Update(AsBytes(bytes));
  offset_ += bytes.size();
  return sink_(bytes);
}

Status DumpWriter::WriteBlock(uint8_t kind, std::string_view payload) {
  std::string stored(ZSTD_compressBound(payload.size()), '\0');
  const size_t size = ZSTD_compress(stored.data(), stored.size(), payload.data(), payload.size(), kCompressionLevel);
  if (ZSTD_isError(size) != 0) {
    return MakeError(ErrorCode::kExhausted, fmt::format("cannot compress: {}", ZSTD_getErrorName(size)));
  }
  stored.resize(size);
  Encoder header;
  header.U32(static_cast<uint32_t>(size)).U32(static_cast<uint32_t>(payload.size())).U8(kind);
  header.Text(std::string_view("\0\0\0\0\0\0\0", 7)).U64(offset_);
  std::string block = header.Take();
  block += CheckOf(block, stored);
  assert(block.size() == kBlockHeaderBytes);
  return WriteBytes(block + stored);
}

Status DumpWriter::Begin(const DumpHead& head) {
  CAIRNFS_RETURN_IF_ERROR(WriteBytes(Encoder().Text(kDumpMagic).U32(DumpHead::kFormatVersion).U32(0).Take()));
  Encoder payload;
  payload.U8(static_cast<uint8_t>(head.of)).Text(head.filesystem).Time(head.taken).LengthPrefixed(head.program);
  return WriteBlock(kHeadBlock, payload.Take());
}

Status DumpWriter::Add(std::string_view key, std::string_view value) {
  assert(IsInDump(key));
  pending_ += Encoder().LengthPrefixed(key).LengthPrefixed(value).Take();
  ++entries_;
  if (pending_.size() < kBlockPayloadBytes) return {};
  CAIRNFS_RETURN_IF_ERROR(WriteBlock(kEntriesBlock, pending_));
  pending_.clear();
  return {};
}

Status DumpWriter::Finish(uint64_t revision) {
  if (!pending_.empty()) CAIRNFS_RETURN_IF_ERROR(WriteBlock(kEntriesBlock, pending_));
  pending_.clear();
  const Digest digest = digester_.Finish();
  return WriteBlock(kEndBlock, Encoder().U64(revision).U64(entries_).Id(digest).Take());
}

Result<DumpHead> ReadDumpHead(const DumpSource& source) {
  CAIRNFS_ASSIGN_OR_RETURN(const uint64_t first, ReadFileHeader(source));
  CAIRNFS_ASSIGN_OR_RETURN(const DumpBlock block, ReadBlock(source, first));
  return DecodeHead(block);
}

Result<DumpSummary> ReadDump(const DumpSource& source, const DumpVisitor& visit) {
  DumpSummary summary;
  CAIRNFS_ASSIGN_OR_RETURN(summary.head, ReadDumpHead(source));
  DumpEntries entries(summary.head, visit);
  chunking::Digester digester;
  CAIRNFS_ASSIGN_OR_RETURN(const std::string header, source(0, kFileHeaderBytes));
  digester.Update(AsBytes(header));
  for (uint64_t offset = kFileHeaderBytes;;) {
    CAIRNFS_ASSIGN_OR_RETURN(const DumpBlock block, ReadBlock(source, offset));
    if (block.kind == kEndBlock) {
      Decoder decoder(block.payload);
      summary.revision = decoder.U64();
      summary.entries = decoder.U64();
      summary.digest = decoder.Id();
      summary.bytes = block.next;
      const bool is_whole = decoder.Finished() && summary.entries == entries.count() &&
                            summary.digest == digester.Finish() && entries.IsWhole();
      if (!is_whole) return DamagedDump(offset, "what stands before its end is not what was dumped");
      CAIRNFS_ASSIGN_OR_RETURN(const std::string more, source(block.next, 1));
      if (!more.empty()) return DamagedDump(block.next, "something follows its end");
      return summary;
    }
    const bool is_first = offset == kFileHeaderBytes;
    if (block.kind != (is_first ? kHeadBlock : kEntriesBlock)) {
      return DamagedDump(offset, "this block is of another kind than what comes there");
    }
    if (!is_first) CAIRNFS_RETURN_IF_ERROR(entries.Take(block));
    digester.Update(AsBytes(block.bytes));
    offset = block.next;
  }
}

}  // namespace cairnfs::meta
