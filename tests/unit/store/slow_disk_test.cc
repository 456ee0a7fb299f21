// What is on its way to a disk at once goes by how long the disk takes for it.
#include <deque>
#include <thread>

#include "base/clock.h"
#include "store_fixture.h"

namespace cairnfs::store {
namespace {

// Keeps asynchronous writes until they are let go, oldest first.
class HeldWrites {
 public:
  void Add(std::function<void()> write) {
    MutexLock lock(mutex_);
    writes_.push_back(std::move(write));
    most_ = std::max(most_, writes_.size());
  }
  bool LetOneGo() {
    std::function<void()> write;
    {
      MutexLock lock(mutex_);
      if (writes_.empty()) return false;
      write = std::move(writes_.front());
      writes_.pop_front();
    }
    write();
    return true;
  }
  // Since the last call.
  size_t TakeMost() {
    MutexLock lock(mutex_);
    return std::exchange(most_, writes_.size());
  }

 private:
  Mutex mutex_;
  std::deque<std::function<void()>> writes_ GUARDED_BY(mutex_);
  size_t most_ GUARDED_BY(mutex_) = 0;
};

class HoldingFile final : public io::File {
 public:
  HoldingFile(std::unique_ptr<io::File> base, HeldWrites& held) : base_(std::move(base)), held_(held) {}
  void ReadAsync(uint64_t offset, MutableByteSpan data, io::IoCallback done) override {
    base_->ReadAsync(offset, data, std::move(done));
  }
  void WriteAsync(uint64_t offset, ByteSpan data, io::IoCallback done) override {
    held_.Add(
        [this, offset, data, done = std::move(done)]() mutable { base_->WriteAsync(offset, data, std::move(done)); });
  }
  Status Write(uint64_t offset, ByteSpan data) override { return base_->Write(offset, data); }
  Status DataSync() override { return base_->DataSync(); }
  Status Allocate(uint64_t size) override { return base_->Allocate(size); }
  Status Truncate(uint64_t size) override { return base_->Truncate(size); }
  Result<uint64_t> Size() override { return base_->Size(); }
  bool direct() const override { return base_->direct(); }
  const std::string& path() const override { return base_->path(); }

 private:
  const std::unique_ptr<io::File> base_;
  HeldWrites& held_;
};

class HoldingDisk final : public io::Disk {
 public:
  HoldingDisk(io::Disk& base, HeldWrites& held) : base_(base), held_(held) {}
  Result<std::unique_ptr<io::File>> Create(const std::string& name) override { return Held(base_.Create(name)); }
  Result<std::unique_ptr<io::File>> Open(const std::string& name) override { return Held(base_.Open(name)); }
  Status Remove(const std::string& name) override { return base_.Remove(name); }
  Status Rename(const std::string& from, const std::string& to) override { return base_.Rename(from, to); }
  Result<std::vector<std::string>> List() override { return base_.List(); }
  Status SyncDirectory() override { return base_.SyncDirectory(); }
  Result<Space> GetSpace() override { return base_.GetSpace(); }

 private:
  Result<std::unique_ptr<io::File>> Held(Result<std::unique_ptr<io::File>> file) {
    if (!file.ok()) return file.error();
    return std::unique_ptr<io::File>(std::make_unique<HoldingFile>(*std::move(file), held_));
  }
  io::Disk& base_;
  HeldWrites& held_;
};

class SlowDiskTest : public StoreTest {
 protected:
  static constexpr int kWindows = 40;
  // Puts chunks, of which each fills a window unless it is smaller, while the disk takes so long for each write. How
  // many writes it had at once.
  size_t MostAtOnce(std::chrono::milliseconds each, int chunks = kWindows, size_t chunk_bytes = 900'000) {
    std::atomic<bool> is_done{false};
    std::thread writer([&] {
      for (int i = 0; i < chunks; ++i) Put(MakeChunk(++seed_, chunk_bytes));
      EXPECT_TRUE(store_->Sync().ok());
      is_done = true;
    });
    while (!is_done) {
      Clock::SleepFor(std::max(each, std::chrono::milliseconds(1)));
      while (held_.LetOneGo() && each.count() == 0) {
      }
    }
    writer.join();
    return held_.TakeMost();
  }
  HeldWrites held_;
  uint64_t seed_ = 0;
};

TEST_F(SlowDiskTest, GetsFewWritesAtOnceAndAQuickOneMany) {
  HoldingDisk disk(disk_, held_);
  auto store = LocalChunkStore::Open(disk, *engine_, *pool_, SmallOptions());
  ASSERT_OK(store);
  store_ = *std::move(store);
  EXPECT_LE(MostAtOnce(std::chrono::seconds(1)), 3u) << "two windows, and what a sync writes out";
  EXPECT_GT(MostAtOnce(std::chrono::milliseconds(0)), 6u);
  MostAtOnce(std::chrono::seconds(1));
  EXPECT_LE(MostAtOnce(std::chrono::seconds(1)), 3u);
  // That it is quick with little tells nothing.
  for (int i = 0; i < 30; ++i) MostAtOnce(std::chrono::milliseconds(0), 1, 200'000);
  EXPECT_LE(MostAtOnce(std::chrono::seconds(1)), 3u);
  store_.reset();
}

}  // namespace
}  // namespace cairnfs::store
