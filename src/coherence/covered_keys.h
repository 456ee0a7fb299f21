// Which records a delegation covers. Of DelegatedStore alone.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>
#include <tuple>

#include "base/coding.h"
#include "meta/records.h"

namespace cairnfs::coherence {

struct ParsedKey {
  char kind = 0;
  InodeId inode;
};

// Keys of records that delegations cover: a kind and an inode, whatever follows. kind 0: another key.
inline ParsedKey Parse(std::string_view key) {
  Decoder decoder(key);
  const char kind = static_cast<char>(decoder.U8());
  const InodeId inode{decoder.BigEndianU64()};
  if (!decoder.ok() || std::string_view("EITDXP").find(kind) == std::string_view::npos) return {};
  return {kind, inode};
}

// What keys of one kind of record of one inode have in common.
inline constexpr size_t kInodePrefixBytes = 1 + sizeof(uint64_t);

// The directory whose delegation covers an inode's own records.
inline InodeId HomeOf(InodeId inode, const meta::InodeRecord& record) {
  return S_ISDIR(record.mode) ? inode : record.parent;
}

// `span`: begin, end, limit.
inline bool IsIn(const std::tuple<std::string, std::string, size_t>& span, std::string_view key) {
  return std::get<0>(span) <= key && key < std::get<1>(span);
}

}  // namespace cairnfs::coherence
