#include "kv/log_files.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/coding.h"
#include "base/thread_annotations.h"
#include "chunking/digest.h"

namespace cairnfs::kv {
namespace {

using rocksdb::FileOptions;
using rocksdb::FSRandomRWFile;
using rocksdb::FSSequentialFile;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

constexpr std::string_view kLogMagic = "CairnLG1";
constexpr size_t kCheckBytes = 8;    // the first of a digest
constexpr size_t kHeaderBytes = 20;  // of a record: check of all that follows, offset in the file, length
constexpr size_t kZerosAhead = 128 << 10;
// RocksDB appends a block of its log at most, and never more than the buffer of a file.
constexpr size_t kPayloadMax = 4 << 20;

// The first of the digest of what follows them in `record`.
std::string_view Check(std::string_view record, Digest& digest) {
  digest = chunking::ComputeDigest(AsBytes(record.substr(kCheckBytes)));
  return std::string_view(reinterpret_cast<const char*>(digest.bytes.data()), kCheckBytes);
}

// Adds a record that begins `offset` bytes into the file.
void AddRecord(std::string& text, uint64_t offset, std::string_view payload) {
  const size_t begin = text.size();
  text.append(kCheckBytes, '\0');
  text += Encoder().U64(offset).U32(static_cast<uint32_t>(payload.size())).Take();
  text += payload;
  Digest digest;
  text.replace(begin, kCheckBytes, Check(std::string_view(text).substr(begin), digest));
}

class LogWriter final : public FSWritableFile {
 public:
  explicit LogWriter(std::unique_ptr<FSRandomRWFile> file) : file_(std::move(file)) {}

  using FSWritableFile::Append;
  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    MutexLock lock(mutex_);
    std::string text(end_ == 0 ? kLogMagic : "");
    text.reserve(data.size() + kLogMagic.size() + kHeaderBytes);
    for (std::string_view left(data.data(), data.size()); !left.empty();) {
      AddRecord(text, end_ + text.size(), left.substr(0, kPayloadMax));
      left.remove_prefix(std::min(left.size(), kPayloadMax));
    }
    // What a write that failed left there ends the log for a reader, and is overwritten by the next one.
    const IOStatus status = file_->Write(end_, text, options, debug);
    if (!status.ok()) return status;
    end_ += text.size();
    appended_ += data.size();
    written_ = std::max(written_, end_);
    return status;
  }

  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    WriteZerosAhead(options, debug);
    return file_->Sync(options, debug);
  }
  bool IsSyncThreadSafe() const override { return true; }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    {
      MutexLock lock(mutex_);
      // Without the end mark a reader trusts what follows the log only where the sequence numbers go on.
      std::string mark;
      AddRecord(mark, end_, "");
      if (end_ != 0) file_->Write(end_, mark, options, debug).PermitUncheckedError();
    }
    return file_->Close(options, debug);
  }

  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override {
    MutexLock lock(mutex_);
    return appended_;
  }

 private:
  // Where the last append left the zeros behind, the sync waits for the journal anyhow.
  void WriteZerosAhead(const IOOptions& options, IODebugContext* debug) {
    static const std::string zeros(kZerosAhead, '\0');
    MutexLock lock(mutex_);
    if (written_ != end_ || end_ == 0) return;
    // On a full disk the log goes on without.
    if (file_->Write(end_, zeros, options, debug).ok()) written_ = end_ + kZerosAhead;
  }

  const std::unique_ptr<FSRandomRWFile> file_;
  Mutex mutex_;
  uint64_t end_ GUARDED_BY(mutex_) = 0;       // of the records
  uint64_t written_ GUARDED_BY(mutex_) = 0;   // end of what the file holds, zeros included
  uint64_t appended_ GUARDED_BY(mutex_) = 0;  // bytes of RocksDB
};

// What RocksDB appended, up to the last record that checks. One thread.
class LogReader final : public FSSequentialFile {
 public:
  // `is_newest`: no log was begun after this one.
  LogReader(std::unique_ptr<FSSequentialFile> file, bool is_newest)
      : file_(std::move(file)), offset_(kLogMagic.size()), is_newest_(is_newest) {}

  IOStatus Read(size_t n, const IOOptions& options, Slice* result, char* scratch, IODebugContext* debug) override {
    size_t filled = 0;
    while (filled < n && (!left_.empty() || NextRecord(options, debug))) {
      const size_t taken = std::min(n - filled, left_.size());
      std::memcpy(scratch + filled, left_.data(), taken);
      left_.remove_prefix(taken);
      filled += taken;
    }
    if (!error_.ok()) return error_;
    if (filled < n && !is_newest_ && !is_closed_) {
      // RocksDB goes on with the next log after a short read. Only after an error it looks whether the sequence numbers
      // go on there. It skips zeros.
      if (filled == 0) return IOStatus::Corruption("the log was not closed, or its end is damaged");
      std::memset(scratch + filled, 0, n - filled);
      filled = n;
    }
    *result = Slice(scratch, filled);
    return IOStatus::OK();
  }

  IOStatus Skip(uint64_t n) override {
    std::string piece(std::min<uint64_t>(n, 64 << 10), '\0');
    while (n > 0) {
      Slice read;
      const IOStatus status = Read(std::min<uint64_t>(n, piece.size()), IOOptions(), &read, piece.data(), nullptr);
      if (!status.ok() || read.empty()) return status;
      n -= read.size();
    }
    return IOStatus::OK();
  }

 private:
  // False at the end, and after an error of the file.
  bool NextRecord(const IOOptions& options, IODebugContext* debug) {
    if (has_ended_) return false;
    has_ended_ = true;
    record_.clear();
    if (!ReadBytes(kHeaderBytes, options, debug)) return false;
    Decoder decoder(std::string_view(record_).substr(kCheckBytes));
    const uint64_t offset = decoder.U64();
    const uint32_t size = decoder.U32();
    if (offset != offset_ || size > kPayloadMax || !ReadBytes(size, options, debug)) return false;
    Digest digest;
    if (!record_.starts_with(Check(record_, digest))) return false;
    is_closed_ = size == 0;
    if (is_closed_) return false;
    offset_ += kHeaderBytes + size;
    left_ = std::string_view(record_).substr(kHeaderBytes);
    has_ended_ = false;
    return true;
  }

  // Adds that many bytes of the file to record_. False when it has fewer.
  bool ReadBytes(size_t size, const IOOptions& options, IODebugContext* debug) {
    const size_t begin = record_.size();
    record_.resize(begin + size);
    Slice read;
    error_ = file_->Read(size, options, &read, record_.data() + begin, debug);
    if (!error_.ok() || read.size() != size) return false;
    if (read.data() != record_.data() + begin) std::memmove(record_.data() + begin, read.data(), size);
    return true;
  }

  const std::unique_ptr<FSSequentialFile> file_;
  uint64_t offset_;  // of the next record
  const bool is_newest_;
  bool has_ended_ = false, is_closed_ = false;
  std::string record_;     // the one that is read
  std::string_view left_;  // of record_
  IOStatus error_;
};

// The number of "/a/b/000012.log"; nullopt for other names.
std::optional<uint64_t> LogNumber(std::string_view name) {
  name.remove_prefix(name.rfind('/') + 1);
  if (!name.ends_with(".log")) return std::nullopt;
  name.remove_suffix(4);
  uint64_t number = 0;
  auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (name.empty() || code != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  return number;
}

class LogFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  LogFileSystem() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "CairnFS logs"; }

  IOStatus NewWritableFile(const std::string& name, const FileOptions& options, std::unique_ptr<FSWritableFile>* result,
                           IODebugContext* debug) override {
    IOStatus status = target()->NewWritableFile(name, options, result, debug);
    if (!status.ok() || !LogNumber(name)) return status;
    status = (*result)->Close(options.io_options, debug);
    std::unique_ptr<FSRandomRWFile> file;
    if (status.ok()) status = target()->NewRandomRWFile(name, options, &file, debug);
    if (status.ok()) *result = std::make_unique<LogWriter>(std::move(file));
    return status;
  }

  // A log is never written again.
  IOStatus ReopenWritableFile(const std::string& name, const FileOptions& options,
                              std::unique_ptr<FSWritableFile>* result, IODebugContext* debug) override {
    if (LogNumber(name)) return IOStatus::NotSupported("a log is not opened again", name);
    return target()->ReopenWritableFile(name, options, result, debug);
  }
  IOStatus ReuseWritableFile(const std::string& name, const std::string& old_name, const FileOptions& options,
                             std::unique_ptr<FSWritableFile>* result, IODebugContext* debug) override {
    if (LogNumber(name)) return IOStatus::NotSupported("a log is not used again", name);
    return target()->ReuseWritableFile(name, old_name, options, result, debug);
  }

  IOStatus NewSequentialFile(const std::string& name, const FileOptions& options,
                             std::unique_ptr<FSSequentialFile>* result, IODebugContext* debug) override {
    IOStatus status = target()->NewSequentialFile(name, options, result, debug);
    const std::optional<uint64_t> number = LogNumber(name);
    if (!status.ok() || !number) return status;
    std::string magic(kLogMagic.size(), '\0');
    Slice read;
    status = (*result)->Read(magic.size(), options.io_options, &read, magic.data(), debug);
    if (!status.ok()) return status;
    // A log whose first page a power cut lost begins with zeros.
    if (read.ToStringView() != kLogMagic && read.ToStringView() != std::string(magic.size(), '\0')) {
      return target()->NewSequentialFile(name, options, result, debug);
    }
    *result = std::make_unique<LogReader>(std::move(*result), IsNewest(name, *number, options.io_options));
    return status;
  }

 private:
  bool IsNewest(const std::string& name, uint64_t number, const IOOptions& options) {
    const std::string directory = name.substr(0, name.rfind('/') + 1);
    std::vector<std::string> names;
    if (!target()->GetChildren(directory, options, &names, nullptr).ok()) return false;
    return std::none_of(names.begin(), names.end(), [&](const std::string& other) {
      const std::optional<uint64_t> its_number = LogNumber(other);
      uint64_t size = 0;
      return its_number && *its_number > number &&
             target()->GetFileSize(directory + other, options, &size, nullptr).ok() && size > 0;
    });
  }
};

}  // namespace

rocksdb::Env* LogEnv() {
  // RocksDB's own threads may use it until the very end.
  static rocksdb::Env* const env = rocksdb::NewCompositeEnv(std::make_shared<LogFileSystem>()).release();
  return env;
}

}  // namespace cairnfs::kv
