#include "fuse/write_overflow.h"

#include <cassert>
#include <cstring>

#include "base/start_thread.h"
#include "fuse/ops.h"
#include "fuse/receiver.h"

namespace cairnfs::fuse {

WriteOverflow::~WriteOverflow() { Stop(); }

Status WriteOverflow::Start() {
  CAIRNFS_ASSIGN_OR_RETURN(thread_, StartThread("writes that wait for memory", [this] { Run(); }));
  return {};
}

bool WriteOverflow::HasRoom() const {
  MutexLock lock(mutex_);
  return queued_bytes_ < kOverflowBytesMax;
}

void WriteOverflow::Add(fuse_req_t request, fs::FileSystem::WriteRequest write, ByteSpan payload) {
  // Not value-initialised: the bytes are overwritten at once.
  std::unique_ptr<std::byte[]> copy(new std::byte[payload.size()]);
  std::memcpy(copy.get(), payload.data(), payload.size());
  assert(thread_.joinable());
  {
    MutexLock lock(mutex_);
    assert(!stopping_ && queued_bytes_ < kOverflowBytesMax);
    queue_.push_back({request, std::move(write), std::move(copy), payload.size()});
    queued_bytes_ += payload.size();
  }
  changed_.NotifyOne();
}

void WriteOverflow::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyOne();
  if (thread_.joinable()) thread_.join();
}

void WriteOverflow::Run() {
  pthread_setname_np(pthread_self(), "fuse-overflow");
  for (;;) {
    MutexLock lock(mutex_);
    while (queue_.empty() && !stopping_) changed_.Wait(mutex_);
    if (queue_.empty()) return;
    Postponed postponed = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_ -= postponed.size;
    lock.Unlock();
    HandOn(std::move(postponed));
    lock.Lock();
  }
}

Result<io::Slice> WriteOverflow::Place(ByteSpan payload) {
  const bool small = payload.size() < kKeptPayloadBytesMin;
  if (small && packer_.Fits(payload.size())) return packer_.Add(payload);
  packer_.Drop();
  CAIRNFS_ASSIGN_OR_RETURN(io::BufferRef buffer, await_buffer_());
  if (small) {
    packer_.Refill(std::move(buffer));
    return packer_.Add(payload);
  }
  std::byte* to = buffer.payload();
  std::memcpy(to, payload.data(), payload.size());
  return io::Slice{std::move(buffer), to, payload.size()};
}

void WriteOverflow::HandOn(Postponed postponed) {
  const ByteSpan payload{postponed.payload.get(), postponed.size};
  Result<io::Slice> placed = Place(payload);
  if (!placed.ok()) return RefuseWrite(postponed.request, std::move(postponed.write), payload, placed.error());
  postponed.write.data = *std::move(placed);
  SubmitWrite(postponed.request, std::move(postponed.write));
}

}  // namespace cairnfs::fuse
