#include "io/memory_disk.h"

#include <algorithm>
#include <cassert>

#include "io/sparse_bytes.h"

namespace cairnfs::io {
namespace {

constexpr size_t kSectorBytes = 512;

}  // namespace

// A change of a file's content. A write has data; a change of size has none.
struct MemoryDisk::Change {
  bool resize = false;
  uint64_t offset = 0;  // the new size for a resize
  std::string data;

  void ApplyTo(SparseBytes& bytes) const { resize ? bytes.Resize(offset) : bytes.Write(offset, AsBytes(data)); }
};

// A file's content. Guarded by the disk's mutex.
struct MemoryDisk::Node {
  SparseBytes live;
  SparseBytes synced;
  std::vector<Change> unsynced;  // synced + these, in order, is live

  void Add(Change change) {
    change.ApplyTo(live);
    unsynced.push_back(std::move(change));
  }
  void Sync() {
    for (const Change& change : unsynced) change.ApplyTo(synced);
    unsynced.clear();
  }
};

// `node` appears under `to`, if that is not empty; what was under `from` goes.
struct MemoryDisk::NameChange {
  std::string from;
  std::string to;
  std::shared_ptr<Node> node;
};

class MemoryFile final : public File {
 public:
  MemoryFile(MemoryDisk& disk, const std::string& name, std::shared_ptr<MemoryDisk::Node> node, uint64_t epoch)
      : disk_(disk), path_("memory:" + name), node_(std::move(node)), epoch_(epoch) {
    disk_.open_files_.fetch_add(1);
  }
  ~MemoryFile() override {
    assert(in_flight_.load() == 0 && "a file is closed while an operation is in flight");
    disk_.open_files_.fetch_sub(1);
  }

  void ReadAsync(uint64_t offset, MutableByteSpan data, IoCallback done) override {
    Start(offset, data.data(), data.size(), std::move(done), [this, offset, data]() -> Result<size_t> {
      disk_.mutex_.AssertHeld();
      return node_->live.Read(offset, data);
    });
  }

  void WriteAsync(uint64_t offset, ByteSpan data, IoCallback done) override {
    Start(offset, data.data(), data.size(), std::move(done), [this, offset, data]() -> Result<size_t> {
      disk_.mutex_.AssertHeld();
      CAIRNFS_RETURN_IF_ERROR(disk_.Grow(*node_, offset + data.size()));
      node_->Add({.resize = false, .offset = offset, .data = std::string(AsText(data))});
      return data.size();
    });
  }

  Status DataSync() override {
    MutexLock lock(disk_.mutex_);
    CAIRNFS_RETURN_IF_ERROR(Check());
    node_->Sync();
    return {};
  }

  Status Allocate(uint64_t size) override {
    MutexLock lock(disk_.mutex_);
    CAIRNFS_RETURN_IF_ERROR(Check());
    if (size <= node_->live.size()) return {};
    CAIRNFS_RETURN_IF_ERROR(disk_.Grow(*node_, size));
    node_->Add({.resize = true, .offset = size, .data = {}});
    return {};
  }

  Status Truncate(uint64_t size) override {
    MutexLock lock(disk_.mutex_);
    CAIRNFS_RETURN_IF_ERROR(Check());
    CAIRNFS_RETURN_IF_ERROR(disk_.Grow(*node_, size));
    node_->Add({.resize = true, .offset = size, .data = {}});
    return {};
  }

  Result<uint64_t> Size() override {
    MutexLock lock(disk_.mutex_);
    CAIRNFS_RETURN_IF_ERROR(Check());
    return node_->live.size();
  }

  bool direct() const override { return disk_.options_.direct; }
  const std::string& path() const override { return path_; }

 private:
  Status Check() const REQUIRES_LOCK(disk_.mutex_) {
    if (epoch_ == disk_.epoch_) return {};
    return MakeError(ErrorCode::kIo, path_ + ": the power was cut while the file was open");
  }

  template <typename Operation>
  void Start(uint64_t offset, const std::byte* data, size_t size, IoCallback done, Operation operation) {
    if (direct()) {
      assert(offset % kPageBytes == 0 && size % kPageBytes == 0 &&
             reinterpret_cast<uintptr_t>(data) % kPageBytes == 0 && "direct I/O moves whole aligned pages");
    }
    in_flight_.fetch_add(1);
    disk_.queue_.Post([this, done = std::move(done), operation] {
      Result<size_t> result = 0;
      {
        MutexLock lock(disk_.mutex_);
        Status status = Check();
        result = status.ok() ? operation() : Result<size_t>(status.error());
      }
      in_flight_.fetch_sub(1);
      done(std::move(result));
    });
  }

  MemoryDisk& disk_;
  const std::string path_;
  const std::shared_ptr<MemoryDisk::Node> node_;
  const uint64_t epoch_;
  std::atomic<uint64_t> in_flight_{0};
};

MemoryDisk::MemoryDisk(const Options& options) : options_(options), queue_("memory-disk", options.thread_count) {}

MemoryDisk::~MemoryDisk() { assert(open_files_.load() == 0 && "a file is open"); }

std::unique_ptr<File> MemoryDisk::MakeFile(const std::string& name, std::shared_ptr<Node> node) {
  return std::make_unique<MemoryFile>(*this, name, std::move(node), epoch_);
}

void MemoryDisk::Apply(const NameChange& change, Names& names) {
  names.erase(change.from);
  if (!change.to.empty()) names[change.to] = change.node;
}

void MemoryDisk::ChangeNames(NameChange change) {
  Apply(change, names_);
  unsynced_names_.push_back(std::move(change));
}

Result<std::unique_ptr<File>> MemoryDisk::Create(const std::string& name) {
  MutexLock lock(mutex_);
  if (names_.contains(name)) return MakeError(ErrorCode::kAlreadyExists, "creating memory:" + name);
  auto node = std::make_shared<Node>();
  ChangeNames({.from = {}, .to = name, .node = node});
  return MakeFile(name, std::move(node));
}

Result<std::unique_ptr<File>> MemoryDisk::Open(const std::string& name) {
  MutexLock lock(mutex_);
  auto found = names_.find(name);
  if (found == names_.end()) return MakeError(ErrorCode::kNotFound, "opening memory:" + name);
  return MakeFile(name, found->second);
}

Status MemoryDisk::Remove(const std::string& name) {
  MutexLock lock(mutex_);
  if (!names_.contains(name)) return MakeError(ErrorCode::kNotFound, "removing memory:" + name);
  ChangeNames({.from = name, .to = {}, .node = nullptr});
  return {};
}

Status MemoryDisk::Rename(const std::string& from, const std::string& to) {
  MutexLock lock(mutex_);
  auto found = names_.find(from);
  if (found == names_.end()) return MakeError(ErrorCode::kNotFound, "renaming memory:" + from);
  ChangeNames({.from = from, .to = to, .node = found->second});
  return {};
}

Result<std::vector<std::string>> MemoryDisk::List() {
  MutexLock lock(mutex_);
  std::vector<std::string> list;
  for (const auto& [name, node] : names_) list.push_back(name);
  return list;
}

Status MemoryDisk::SyncDirectory() {
  MutexLock lock(mutex_);
  synced_names_ = names_;
  unsynced_names_.clear();
  return {};
}

Result<Disk::Space> MemoryDisk::GetSpace() {
  MutexLock lock(mutex_);
  uint64_t used = 0;
  for (const auto& [name, node] : names_) used += node->live.size();
  return Space{.total_bytes = options_.size_bytes,
               .free_bytes = options_.size_bytes - std::min(used, options_.size_bytes)};
}

Status MemoryDisk::Grow(Node& node, uint64_t size) {
  if (size <= node.live.size()) return {};
  uint64_t others = 0;
  for (const auto& [name, other] : names_) {
    if (other.get() != &node) others += other->live.size();
  }
  if (size <= options_.size_bytes && others <= options_.size_bytes - size) return {};
  return MakeError(ErrorCode::kNoSpace, "the disk in memory is full");
}

void MemoryDisk::CrashNode(Node& node, std::mt19937_64& random) {
  // The extremes, no unsynced change or all of them, are as likely as everything between.
  enum class Kept { kNothing, kSome, kEverything };
  const auto kept = static_cast<Kept>(random() % 3);
  if (kept == Kept::kEverything) {
    node.Sync();
  } else if (kept == Kept::kSome) {
    const size_t resizes_until = random() % (node.unsynced.size() + 1);
    for (size_t i = 0; i < node.unsynced.size(); i++) {
      const Change& change = node.unsynced[i];
      if (change.resize) {
        if (i < resizes_until) change.ApplyTo(node.synced);
        continue;
      }
      const uint64_t end = change.offset + change.data.size();
      if (i < resizes_until && end > node.synced.size()) node.synced.Resize(end);
      for (uint64_t at = change.offset; at < end;) {
        const uint64_t sector_end = std::min((at / kSectorBytes + 1) * kSectorBytes, end);
        const uint64_t stop = std::min(sector_end, node.synced.size());
        if (random() % 2 == 0 && at < stop) {
          node.synced.Write(at, AsBytes(std::string_view(change.data).substr(at - change.offset, stop - at)));
        }
        at = sector_end;
      }
    }
  }
  node.live = node.synced;
  node.unsynced.clear();
}

void MemoryDisk::Crash(uint64_t seed) {
  MutexLock lock(mutex_);
  std::mt19937_64 random(seed);
  const size_t kept_count = random() % (unsynced_names_.size() + 1);
  for (size_t i = 0; i < kept_count; i++) Apply(unsynced_names_[i], synced_names_);
  unsynced_names_.clear();
  names_ = synced_names_;
  for (auto& [name, node] : names_) CrashNode(*node, random);
  epoch_++;
}

std::optional<std::string> MemoryDisk::Contents(const std::string& name) {
  MutexLock lock(mutex_);
  auto found = names_.find(name);
  if (found == names_.end()) return std::nullopt;
  std::string contents(found->second->live.size(), '\0');
  found->second->live.Read(0, std::as_writable_bytes(std::span(contents)));
  return contents;
}

bool MemoryDisk::FlipBit(const std::string& name, uint64_t bit) {
  MutexLock lock(mutex_);
  auto found = names_.find(name);
  if (found == names_.end() || bit / 8 >= found->second->live.size()) return false;
  // Syncs the file, so that the damage is found after a crash as well.
  found->second->Sync();
  for (SparseBytes* bytes : {&found->second->live, &found->second->synced}) {
    std::byte byte;
    bytes->Read(bit / 8, {&byte, 1});
    byte ^= std::byte{1} << (bit % 8);
    bytes->Write(bit / 8, {&byte, 1});
  }
  return true;
}

}  // namespace cairnfs::io
