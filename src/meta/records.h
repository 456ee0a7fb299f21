// Keys and values of the namespace: docs/formats/namespace.md has the byte tables.
//
//   H                     filesystem header
//   I <ino be64>          inode: type, mode, owner, links, times, symlink target, parent of a directory
//   D <ino be64>          content of a regular file: size, mtime, ctime, recipe. Absent: empty, never written
//   E <parent be64> name  directory entry
//   T <ino be64>          mtime and ctime of a directory, put blindly so that creates in one directory do not conflict
//   X <ino be64> name     extended attribute
//   O <ino be64>          orphan: an inode with no link left, kept until nobody has it open
//   P <ino be64> node session  mark: this session of a cluster's node has made, emptied or closed the file, and has not
//                         published it since
//   J <ino be64>          commit of a directory (commit_record.h); followed by a node's id: what that host knows of it
//   A <ino be64>          the directory has a policy (policy_records.h); followed by 'r': when it was last applied
//   S <ino be64>          what came of that, as JSON
//   F <ino be64> node     the last commit of the directory that this host refused (refused_commit.h)
//   WU...                 quotas and what counts for them (quota_records.h)
//   Y <ino be64>          durability level that was set for a directory of a cluster, and what is below it
//   VW <ino be64>         files that appear whole: what was set for a directory, and what is below it
//   s                     how many directories are sealed (seals.h)
//   V                     bumped by every move of a directory between directories (no cycles)
//   G                     bytes freed that no collection has looked at: only between a clean stop and the next start
//   C                     settings of a cluster (src/daemon/cluster_settings.h)
//   Z                     only while names are loaded into the store (src/meta/load.h)
//   N                     next inode number that no process has reserved (written durably before any is used)
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "meta/seals.h"

namespace cairnfs::meta {

struct InodeRecord {
  uint32_t mode = 0;  // type and permission bits, as st_mode
  uint32_t uid = 0, gid = 0;
  uint32_t nlink = 0;
  uint64_t rdev = 0;
  Timestamp atime, mtime, ctime;  // of a directory: mtime and ctime are the later of these and its T record's;
                                  // of a regular file with a D record: that record's mtime, and the later ctime
  InodeId parent;              // in which it lies; of what is no directory: where the last name was made, 0 where that
                               // is not known
  std::string symlink_target;  // symbolic links only
  SealState seal = SealState::kNone;  // directories only
  uint64_t seal_mark = 0;             // of one that is being sealed: Namespace::MarkSealing
  InodeId quota;  // the directory whose quota it falls under (quota_records.h); 0: none. Directories and
                  // regular files only

  std::string Encode() const;
  static Result<InodeRecord> Decode(std::string_view value);
};

struct FileRecord {
  uint64_t size = 0;
  uint64_t allocated_bytes = 0;  // sum of extent lengths, for st_blocks
  uint64_t unique_bytes = 0;     // of those, at most, so many were stored nowhere when they were written
  InodeId quota;                 // that they count for; 0: none
  Timestamp mtime, ctime;
  std::string recipe;  // src/fs/recipe.h; empty: all holes

  std::string Encode() const;
  static Result<FileRecord> Decode(std::string_view value);
};

// Says of a file that the node of the key has made or emptied it, or closed it after writing, and has not published it
// since. docs/cluster/publishing.md.
struct UnpublishedMark {
  uint64_t session = 0;  // revision of the node's session, as in the key: once that has ended the bytes are lost
  std::string failure;   // why a publish failed; empty: none did
  std::string Encode() const;
  static Result<UnpublishedMark> Decode(std::string_view value);
};

// What `user.cairnfs.level` says of a directory.
struct LevelRecord {
  bool is_replicated = true;  // else local
  std::string Encode() const;
  static Result<LevelRecord> Decode(std::string_view value);
};

// What `user.cairnfs.atomic_files` and `user.cairnfs.atomic_complete` say of a directory. One that is not set counts
// from the directory above.
struct AtomicRecord {
  std::optional<std::string> patterns;  // as they were set
  std::optional<bool> must_be_complete;
  std::string Encode() const;
  static Result<AtomicRecord> Decode(std::string_view value);
};

struct DentryRecord {
  InodeId inode;
  uint32_t type = 0;  // the S_IFMT bits
  std::string Encode() const;
  static Result<DentryRecord> Decode(std::string_view value);
};

struct DirectoryTimes {
  Timestamp mtime, ctime;
  std::string Encode() const;
  static Result<DirectoryTimes> Decode(std::string_view value);
};

// Which files share equal data.
enum class Dedup : uint8_t {
  kMount = 0,  // all
  kOwner = 1,  // those of one owner
};

// The filesystem's own header, made once by mkfs (Namespace::Format).
struct FilesystemHeader {
  static constexpr uint32_t kFormatVersion = 2;  // the newest that this program knows
  uint32_t format_version = 1;                   // Encode raises it to the oldest that can say what is in the header
  std::string uuid;                              // 16 random bytes
  Timestamp created;
  std::string chunk_params;  // chunking::ChunkParams::Encode()
  Dedup dedup = Dedup::kMount;
  std::string Encode() const;
  // kNotSupported for a newer version, naming both versions.
  static Result<FilesystemHeader> Decode(std::string_view value);
};

std::string HeaderKey();
std::string ClusterSettingsKey();
std::string InodeKey(InodeId inode);
std::string FileKey(InodeId inode);
std::string DentryKey(InodeId parent, std::string_view name);
std::string DentryPrefix(InodeId parent);
std::optional<InodeId> ParentOfDentryKey(std::string_view key);  // nullopt for another key
std::string DirectoryTimesKey(InodeId inode);
// The extended attribute that holds file capabilities.
inline constexpr std::string_view kCapabilityXattr = "security.capability";
std::string XattrKey(InodeId inode, std::string_view name);
std::string XattrPrefix(InodeId inode);
std::string OrphanKey(InodeId inode);
inline constexpr size_t kNodeIdBytes = 16;
// Of the node's UnpublishedMark, kNodeIdBytes of its id, under a session of it.
std::string MarkKey(InodeId inode, std::string_view node, uint64_t session);
std::string MarkPrefix(InodeId inode);
struct MarkKeyParts {
  InodeId inode;
  std::string node;
};
std::optional<MarkKeyParts> DecodeMarkKey(std::string_view key);
std::string LevelKey(InodeId directory);
std::string LevelsPrefix();
std::optional<InodeId> InodeOfLevelKey(std::string_view key);
std::string AtomicKey(InodeId directory);
std::string AtomicsPrefix();
std::optional<InodeId> InodeOfAtomicKey(std::string_view key);
std::string MoveKey();
std::string FreedBytesKey();
std::string NextInodeKey();
// The inode of a key that is one of these letters and an inode, as of InodeKey, FileKey and OrphanKey; nullopt for
// another key.
std::optional<InodeId> InodeOfKey(std::string_view key, std::string_view letters = "IDO");

}  // namespace cairnfs::meta
