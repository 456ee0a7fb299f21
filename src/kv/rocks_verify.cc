// Verifies the tables of a database that is in use: reads them anew, and compares the checksums that its manifest
// holds.
#include <fcntl.h>
#include <rocksdb/file_checksum.h>
#include <rocksdb/metadata.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "base/clock.h"
#include "base/context.h"
#include "kv/rocks_support.h"

namespace cairnfs::kv {
namespace {

constexpr size_t kPieceBytes = 1 << 20;
constexpr uint64_t kBytesPerSecondMax = 256 << 20;  // beside what others read
constexpr size_t kNamedMax = 8;

Error Stopped() { return MakeError(ErrorCode::kInterrupted, "the check was stopped"); }

// Keeps a reader at `kBytesPerSecondMax`.
class Pace {
 public:
  // False once the context expires.
  bool Await(const Context& context, uint64_t bytes) {
    bytes_ += bytes;
    const auto until = began_ + std::chrono::nanoseconds(bytes_ * 1'000'000'000 / kBytesPerSecondMax);
    return context.Sleep(until - Clock::Now());
  }

 private:
  const Clock::time_point began_ = Clock::Now();
  uint64_t bytes_ = 0;
};

struct Table {
  std::string file;  // its path
  std::string checksum, checksum_name;
};

// By their names.
std::map<std::string, Table> LiveTables(rocksdb::DB& db) {
  std::vector<rocksdb::LiveFileMetaData> files;
  db.GetLiveFilesMetaData(&files);
  std::map<std::string, Table> tables;
  for (const rocksdb::LiveFileMetaData& file : files) {
    tables[file.relative_filename] = {file.directory + "/" + file.relative_filename, file.file_checksum,
                                      file.file_checksum_func_name};
  }
  return tables;
}

struct Reading {
  int error = 0;  // errno
  bool matches = false;
};

Result<Reading> ReadTable(const Context& context, const Table& table, rocksdb::FileChecksumGenerator& generator,
                          Pace& pace) {
  const int fd = open(table.file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Reading{errno};
  // Pages that the kernel has in memory say nothing about the disk.
  (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  std::string piece(kPieceBytes, '\0');
  ssize_t size;
  bool is_stopped = false;
  while (!is_stopped && (size = read(fd, piece.data(), piece.size())) > 0) {
    generator.Update(piece.data(), static_cast<size_t>(size));
    is_stopped = !pace.Await(context, static_cast<uint64_t>(size));
  }
  const int error = size < 0 ? errno : 0;
  close(fd);
  if (is_stopped) return Stopped();
  if (error != 0) return Reading{error};
  generator.Finalize();
  return Reading{0, generator.GetChecksum() == table.checksum};
}

std::string Describe(const std::map<std::string, std::string>& damaged) {
  std::string text;
  size_t named = 0;
  for (const auto& [name, what] : damaged) {
    if (named == kNamedMax) return text + ", and " + std::to_string(damaged.size() - named) + " more";
    text += (named++ == 0 ? "" : ", ") + name + " " + what;
  }
  return text;
}

}  // namespace

Status VerifyTables(const std::function<std::shared_ptr<rocksdb::DB>()>& current, const std::string& path,
                    const Context& context) {
  // Nobody holds the database meanwhile: it may have to be opened again, for want of space.
  std::shared_ptr<rocksdb::DB> db = current();
  if (db == nullptr) return MakeError(ErrorCode::kUnavailable, "the database in " + path + " is not open");
  const std::shared_ptr<rocksdb::FileChecksumGenFactory> factory = db->GetDBOptions().file_checksum_gen_factory;
  const std::map<std::string, Table> tables = LiveTables(*db);
  db.reset();
  std::map<std::string, std::string> damaged, missing;
  Pace pace;
  for (const auto& [name, table] : tables) {
    if (context.Expired()) return Stopped();
    rocksdb::FileChecksumGenContext wanted;
    wanted.file_name = table.file;
    wanted.requested_checksum_func_name = table.checksum_name;
    auto generator = factory->CreateFileChecksumGenerator(wanted);
    if (generator == nullptr) continue;  // another program wrote it, without one
    CAIRNFS_ASSIGN_OR_RETURN(const Reading reading, ReadTable(context, table, *generator, pace));
    if (reading.error == ENOENT) {
      missing[name] = "is missing";
    } else if (reading.error != 0) {
      damaged[name] = std::string("cannot be read (") + std::strerror(reading.error) + ")";
    } else if (!reading.matches) {
      damaged[name] = "fails its checksum";
    }
  }
  // Tables that a compaction replaced meanwhile are rightly gone.
  if (!missing.empty() && (db = current()) != nullptr) {
    for (const auto& [name, table] : LiveTables(*db)) {
      if (auto found = missing.find(name); found != missing.end()) damaged.insert(*found);
    }
  }
  if (damaged.empty()) return {};
  return ToError(rocksdb::Status::Corruption(Describe(damaged)), path);
}

}  // namespace cairnfs::kv
