// The checks before a RocksDB database is opened for good.
#include <fcntl.h>
#include <rocksdb/env.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <set>

#include "kv/rocks_support.h"

namespace cairnfs::kv {
namespace {

class SilentLogger final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char* /*format*/, va_list /*arguments*/) override {}
};

Error Damaged(const std::string& path, const std::string& what) {
  return ToError(rocksdb::Status::Corruption(what), path);
}

// The number in "MANIFEST-000005" or "/MANIFEST-000005"; nullopt for other names.
std::optional<uint64_t> ManifestNumber(std::string_view name) {
  if (name.starts_with('/')) name.remove_prefix(1);
  if (!name.starts_with("MANIFEST-")) return std::nullopt;
  name.remove_prefix(9);
  while (!name.empty() && name.back() == '\n') name.remove_suffix(1);
  uint64_t number = 0;
  auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (code != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  return number;
}

std::string ManifestPath(const std::string& path, uint64_t number) {
  std::string digits = std::to_string(number);
  return path + "/MANIFEST-" + std::string(digits.size() < 6 ? 6 - digits.size() : 0, '0') + digits;
}

// The first `bytes` bytes of the file; fewer when it is shorter, none when it is not there.
Result<std::string> ReadPrefix(const std::string& path, const std::string& file, uint64_t bytes) {
  std::string text;
  rocksdb::Status status = rocksdb::ReadFileToString(rocksdb::Env::Default(), file, &text);
  if (status.IsNotFound() || status.IsPathNotFound()) return std::string();
  if (!status.ok()) return ToError(status, path);
  if (text.size() > bytes) text.resize(bytes);
  return text;
}

Status CheckManifest(const std::string& path, const SyncMarkRecord& mark) {
  if (mark.manifest_number == 0) return {};
  CAIRNFS_ASSIGN_OR_RETURN(std::string current_text, ReadPrefix(path, path + "/CURRENT", 100));
  std::optional<uint64_t> current = ManifestNumber(current_text);
  if (!current) return Damaged(path, "the file CURRENT does not name a manifest");
  if (*current > mark.manifest_number) return {};
  if (*current < mark.manifest_number) {
    return Damaged(path, "the file CURRENT names manifest " + std::to_string(*current) + ", older than " +
                             std::to_string(mark.manifest_number) + " which was in use");
  }
  CAIRNFS_ASSIGN_OR_RETURN(std::string text, ReadPrefix(path, ManifestPath(path, *current), mark.manifest_bytes));
  if (text.size() < mark.manifest_bytes) {
    return Damaged(path, ManifestPath(path, *current) + " is missing or shorter than the " +
                             std::to_string(mark.manifest_bytes) + " bytes that were synced");
  }
  if (Crc32c(text) != mark.manifest_crc32c) {
    return Damaged(path, "the synced part of " + ManifestPath(path, *current) + " fails its checksum");
  }
  return {};
}

// Whether the disk gives this process so many bytes. Takes them for a moment to find out. False where that cannot be
// done.
bool CanAllocate(const std::string& path, uint64_t bytes) {
  const int fd = open(path.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  int result;
  do {
    result = fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  close(fd);
  return result == 0;
}

// Some free space is not for everybody: root may use one part of it, and the filesystem keeps another for itself
// (ext4's reserved clusters). RocksDB's GetFreeSpace counts all of it as root's.
bool HasRoom(const std::string& path, uint64_t bytes) {
  struct statvfs info;
  if (statvfs(path.c_str(), &info) != 0) return true;
  if (uint64_t{info.f_bavail} * info.f_frsize >= bytes) return true;
  if (uint64_t{info.f_bfree} * info.f_frsize < bytes) return false;
  return CanAllocate(path, bytes);
}

}  // namespace

Result<bool> DatabaseExists(const std::string& path) {
  rocksdb::Env* env = rocksdb::Env::Default();
  if (env->FileExists(path + "/CURRENT").ok()) return true;
  std::vector<std::string> names;
  rocksdb::Status status = env->GetChildren(path, &names);
  if (status.IsNotFound() || status.IsPathNotFound()) return false;
  if (!status.ok()) return ToError(status, path);
  for (const std::string& name : names) {
    uint64_t size = 0;
    bool is_log = name.ends_with(".log") && env->GetFileSize(path + "/" + name, &size).ok() && size > 0;
    if (is_log || name.ends_with(".sst") || name == SyncMark::kFileName) {
      return Damaged(path, "the file CURRENT is missing, but " + name + " shows that a database was here");
    }
  }
  return false;
}

void RemoveHalfMade(const std::string& path) {
  rocksdb::Env* env = rocksdb::Env::Default();
  std::vector<std::string> names;
  env->GetChildren(path, &names).PermitUncheckedError();
  for (const std::string& name : names) {
    bool is_log = name.size() == 10 && name.ends_with(".log") && name.find_first_not_of("0123456789") == 6;
    if (is_log) env->DeleteFile(path + "/" + name).PermitUncheckedError();
  }
}

Status SyncParentDirectory(const std::string& path) {
  std::string parent = path;
  while (parent.size() > 1 && parent.ends_with('/')) parent.pop_back();
  size_t slash = parent.rfind('/');
  parent = slash == std::string::npos ? "." : slash == 0 ? "/" : parent.substr(0, slash);
  std::unique_ptr<rocksdb::Directory> directory;
  rocksdb::Status status = rocksdb::Env::Default()->NewDirectory(parent, &directory);
  if (status.ok()) status = directory->Fsync();
  if (!status.ok()) return ToError(status, parent);
  return {};
}

Result<std::unique_ptr<rocksdb::DB>> OpenUnchanged(const rocksdb::Options& options, const std::string& path) {
  std::optional<SyncMarkRecord> mark = SyncMark::Read(path);
  if (mark) CAIRNFS_RETURN_IF_ERROR(CheckManifest(path, *mark));
  rocksdb::Options quiet = options;
  quiet.info_log = std::make_shared<SilentLogger>();
  quiet.create_if_missing = false;
  quiet.listeners.clear();
  rocksdb::DB* raw = nullptr;
  rocksdb::Status status = rocksdb::DB::OpenForReadOnly(quiet, path, &raw);
  std::unique_ptr<rocksdb::DB> db(raw);
  if (!status.ok()) {
    // A file that the database names and that is missing is damage too.
    std::string words = status.ToString();
    // RocksDB looks for a table under LevelDB's name last, and its message has that name.
    if (size_t at = words.find(".ldb"); at != std::string::npos) words.replace(at, 4, ".sst");
    if (words.find("No such file") != std::string::npos) return Damaged(path, words);
    return ToError(status, path);
  }
  if (mark && db->GetLatestSequenceNumber() < mark->sequence) {
    return Damaged(path, "the write-ahead log ends at sequence " + std::to_string(db->GetLatestSequenceNumber()) +
                             ", but writes up to " + std::to_string(mark->sequence) + " had been synced");
  }
  return db;
}

void RemoveUnnamedTables(const rocksdb::Options& options, const std::string& path) {
  std::vector<std::string> names;
  rocksdb::Env* env = rocksdb::Env::Default();
  if (!env->GetChildren(path, &names).ok()) return;
  Result<std::unique_ptr<rocksdb::DB>> db = OpenUnchanged(options, path);
  if (!db.ok()) return;
  std::vector<rocksdb::LiveFileMetaData> tables;
  (*db)->GetLiveFilesMetaData(&tables);
  std::set<std::string> named;
  for (const rocksdb::LiveFileMetaData& table : tables) named.insert(table.relative_filename);
  for (const std::string& name : names) {
    if (name.ends_with(".sst") && !named.contains(name)) env->DeleteFile(path + "/" + name).PermitUncheckedError();
  }
}

TableBytes MeasureTables(rocksdb::DB& db) {
  rocksdb::ColumnFamilyMetaData tables;
  db.GetColumnFamilyMetaData(&tables);
  uint64_t upper_bytes = 0;  // of levels 0 and 1: a compaction of level 0 may take in all of both
  for (const rocksdb::LevelMetaData& level : tables.levels) {
    if (level.level <= 1) upper_bytes += level.size;
  }
  const uint64_t compaction_max = std::max<uint64_t>(upper_bytes, db.GetOptions().max_compaction_bytes);
  return {tables.size, std::min<uint64_t>(tables.size, compaction_max)};
}

bool HasRoomToRecover(const std::string& path, size_t write_buffer_bytes) {
  rocksdb::Env* env = rocksdb::Env::Default();
  uint64_t needed_bytes = write_buffer_bytes + (1 << 20);
  std::vector<std::string> names;
  env->GetChildren(path, &names).PermitUncheckedError();
  for (const std::string& name : names) {
    uint64_t size = 0;
    if (name.ends_with(".log") && env->GetFileSize(path + "/" + name, &size).ok()) needed_bytes += size;
  }
  return HasRoom(path, needed_bytes);
}

void NoteManifest(rocksdb::DB& db, const std::string& path, SyncMark& mark) {
  std::vector<std::string> files;
  uint64_t bytes = 0;
  if (!db.GetLiveFiles(files, &bytes, /*flush_memtable=*/false).ok()) return;
  for (const std::string& name : files) {
    std::optional<uint64_t> number = ManifestNumber(name);
    if (!number) continue;
    Result<std::string> text = ReadPrefix(path, ManifestPath(path, *number), bytes);
    if (text.ok() && text->size() == bytes) mark.SetManifest(*number, bytes, Crc32c(*text));
  }
}

}  // namespace cairnfs::kv
