#include "io/faulty_disk.h"

#include <algorithm>
#include <thread>

#include "base/clock.h"

namespace cairnfs::io {
namespace {

Error InjectedError(const std::string& what) { return MakeError(ErrorCode::kIo, what + ": injected fault"); }
Error InjectedNoSpace(const std::string& what) { return MakeError(ErrorCode::kNoSpace, what + ": injected full disk"); }

}  // namespace

// What is to go wrong next. Shared by the disk and its files; any thread.
class FaultyDisk::Plan {
 public:
  struct Write {
    bool fails = false;
    size_t size_kept = 0;  // of a failing write
  };
  struct Read {
    bool fails = false;
    std::optional<size_t> size;       // of a short one
    std::optional<uint64_t> flipped;  // number of the bit
  };

  void Set(const Faults& faults) {
    MutexLock lock(mutex_);
    faults_ = faults;
    random_.seed(faults.seed);
  }

  Counts GetCounts() {
    MutexLock lock(mutex_);
    return counts_;
  }

  Write NextWrite(size_t size) {
    MutexLock lock(mutex_);
    counts_.writes++;
    if (!Due(faults_.failing_write) && !Chance(faults_.write_error_share)) return {};
    counts_.faults++;
    return {.fails = true, .size_kept = size < kPageBytes ? 0 : random_() % (size / kPageBytes) * kPageBytes};
  }

  Read NextRead(const std::string& name, uint64_t offset, size_t size) {
    MutexLock lock(mutex_);
    counts_.reads++;
    Read read;
    read.fails = Chance(faults_.read_error_share);
    for (const BadSectors& bad : faults_.bad_sectors) {
      if (bad.name == name && bad.begin < offset + size && offset < bad.end) read.fails = true;
    }
    if (Chance(faults_.short_read_share))
      read.size = size < kPageBytes ? 0 : random_() % (size / kPageBytes) * kPageBytes;
    if (size > 0 && Chance(faults_.bit_flip_share)) read.flipped = random_() % (size * 8);
    if (read.fails || read.size || read.flipped) counts_.faults++;
    return read;
  }

  bool NextSyncFails() {
    MutexLock lock(mutex_);
    counts_.syncs++;
    bool fails = Due(faults_.failing_sync) || Chance(faults_.sync_error_share);
    if (fails) counts_.faults++;
    return fails;
  }

  Status NextOpen(const std::string& name) {
    MutexLock lock(mutex_);
    if (!faults_.opens_max) return {};
    if (*faults_.opens_max == 0) {
      counts_.faults++;
      return MakeError(ErrorCode::kExhausted, "opening " + name + ": injected lack of descriptors");
    }
    --*faults_.opens_max;
    return {};
  }

  // Takes the growth of a file off growth_bytes_max; false when too little is left.
  bool TakeGrowth(uint64_t bytes) {
    MutexLock lock(mutex_);
    if (!faults_.growth_bytes_max) return true;
    if (bytes > *faults_.growth_bytes_max) {
      counts_.faults++;
      return false;
    }
    *faults_.growth_bytes_max -= bytes;
    return true;
  }

  void GiveBack(uint64_t bytes) {
    MutexLock lock(mutex_);
    if (faults_.growth_bytes_max) *faults_.growth_bytes_max += bytes;
  }

  std::optional<uint64_t> GrowthLeft() {
    MutexLock lock(mutex_);
    return faults_.growth_bytes_max;
  }

  void Delay() {
    std::chrono::microseconds delay{0};
    {
      MutexLock lock(mutex_);
      if (faults_.delay_max.count() == 0) return;
      delay = std::chrono::microseconds(random_() % static_cast<uint64_t>(faults_.delay_max.count() + 1));
    }
    Clock::SleepFor(delay);
  }

 private:
  bool Chance(double share) REQUIRES_LOCK(mutex_) {
    return share > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < share;
  }
  static bool Due(std::optional<uint64_t>& countdown) {
    if (!countdown || --*countdown > 0) return false;
    countdown.reset();
    return true;
  }

  Mutex mutex_;  // a leaf
  Faults faults_ GUARDED_BY(mutex_);
  Counts counts_ GUARDED_BY(mutex_);
  std::mt19937_64 random_ GUARDED_BY(mutex_);
};

class FaultyFile final : public File {
 public:
  FaultyFile(std::unique_ptr<File> base, std::string name, std::shared_ptr<FaultyDisk::Plan> plan)
      : base_(std::move(base)), name_(std::move(name)), plan_(std::move(plan)) {}

  void ReadAsync(uint64_t offset, MutableByteSpan data, IoCallback done) override {
    auto fault = plan_->NextRead(name_, offset, data.size());
    auto finish = [plan = plan_, fault, data, path = path(), done = std::move(done)](Result<size_t> result) {
      plan->Delay();
      if (!result.ok()) return done(std::move(result));
      if (fault.fails) return done(InjectedError("reading " + path));
      if (fault.flipped && *fault.flipped / 8 < *result) {
        data[*fault.flipped / 8] ^= std::byte{1} << (*fault.flipped % 8);
      }
      done(fault.size ? std::min(*fault.size, *result) : *result);
    };
    base_->ReadAsync(offset, data, std::move(finish));
  }

  void WriteAsync(uint64_t offset, ByteSpan data, IoCallback done) override {
    auto fault = plan_->NextWrite(data.size());
    std::optional<Error> error;
    if (fault.fails) {
      error = InjectedError("writing " + path());
      data = data.first(fault.size_kept);
    }
    uint64_t growth = 0;
    if (!TakeGrowth(offset + data.size(), &growth)) {
      error = InjectedNoSpace("writing " + path());
      data = data.first(0);
    }
    // An error comes by the same way as a success: on a thread of the engine.
    auto finish = [plan = plan_, error, done = std::move(done)](Result<size_t> result) {
      plan->Delay();
      if (error) return done(*error);
      done(std::move(result));
    };
    base_->WriteAsync(offset, data, std::move(finish));
  }

  Status DataSync() override {
    plan_->Delay();
    if (plan_->NextSyncFails()) return InjectedError("syncing " + path());
    return base_->DataSync();
  }

  Status Allocate(uint64_t size) override {
    uint64_t growth = 0;
    if (!TakeGrowth(size, &growth)) return InjectedNoSpace("allocating " + path());
    Status status = base_->Allocate(size);
    if (!status.ok()) plan_->GiveBack(growth);
    return status;
  }

  Status Truncate(uint64_t size) override {
    CAIRNFS_ASSIGN_OR_RETURN(uint64_t size_before, base_->Size());
    uint64_t growth = 0;
    if (!TakeGrowth(size, &growth)) return InjectedNoSpace("truncating " + path());
    Status status = base_->Truncate(size);
    if (!status.ok()) {
      plan_->GiveBack(growth);
    } else if (size < size_before) {
      plan_->GiveBack(size_before - size);
    }
    return status;
  }

  Result<uint64_t> Size() override { return base_->Size(); }
  bool direct() const override { return base_->direct(); }
  const std::string& path() const override { return base_->path(); }

 private:
  // Writes in flight that grow the file may be counted twice: the limit is met early rather than late.
  bool TakeGrowth(uint64_t end, uint64_t* growth) {
    if (!plan_->GrowthLeft()) return true;
    auto size = base_->Size();
    *growth = size.ok() && end > *size ? end - *size : 0;
    return *growth == 0 || plan_->TakeGrowth(*growth);
  }

  const std::unique_ptr<File> base_;
  const std::string name_;
  const std::shared_ptr<FaultyDisk::Plan> plan_;
};

FaultyDisk::FaultyDisk(Disk& base) : base_(base), plan_(std::make_shared<Plan>()) {}
FaultyDisk::~FaultyDisk() = default;
void FaultyDisk::SetFaults(const Faults& faults) { plan_->Set(faults); }
FaultyDisk::Counts FaultyDisk::GetCounts() const { return plan_->GetCounts(); }

Result<std::unique_ptr<File>> FaultyDisk::Create(const std::string& name) {
  CAIRNFS_RETURN_IF_ERROR(plan_->NextOpen(name));
  CAIRNFS_ASSIGN_OR_RETURN(auto file, base_.Create(name));
  return std::unique_ptr<File>(new FaultyFile(std::move(file), name, plan_));
}

Result<std::unique_ptr<File>> FaultyDisk::Open(const std::string& name) {
  CAIRNFS_RETURN_IF_ERROR(plan_->NextOpen(name));
  CAIRNFS_ASSIGN_OR_RETURN(auto file, base_.Open(name));
  return std::unique_ptr<File>(new FaultyFile(std::move(file), name, plan_));
}

Result<uint64_t> FaultyDisk::SizeOf(const std::string& name) {
  CAIRNFS_ASSIGN_OR_RETURN(auto file, base_.Open(name));
  return file->Size();
}

Status FaultyDisk::Remove(const std::string& name) {
  auto size = plan_->GrowthLeft() ? SizeOf(name) : Result<uint64_t>(0);
  CAIRNFS_RETURN_IF_ERROR(base_.Remove(name));
  if (size.ok()) plan_->GiveBack(*size);
  return {};
}

Status FaultyDisk::Rename(const std::string& from, const std::string& to) { return base_.Rename(from, to); }
Result<std::vector<std::string>> FaultyDisk::List() { return base_.List(); }

Status FaultyDisk::SyncDirectory() {
  if (plan_->NextSyncFails()) return InjectedError("syncing the directory");
  return base_.SyncDirectory();
}

Result<Disk::Space> FaultyDisk::GetSpace() {
  CAIRNFS_ASSIGN_OR_RETURN(Space space, base_.GetSpace());
  if (auto left = plan_->GrowthLeft()) space.free_bytes = std::min(space.free_bytes, *left);
  return space;
}

}  // namespace cairnfs::io
