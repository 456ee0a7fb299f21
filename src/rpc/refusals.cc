#include "rpc/refusals.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/log.h"

namespace cairnfs::rpc {
namespace {

constexpr auto kTellInterval = std::chrono::minutes(1);

}  // namespace

void RefusalLog::Note(const std::string& why) {
  ++total_;
  MutexLock lock(mutex_);
  const auto now = Clock::Now();
  if (told_at_ && now - *told_at_ < kTellInterval) {
    ++untold_;
    return;
  }
  told_at_ = now;
  const uint64_t more = std::exchange(untold_, 0);
  spdlog::warn("{}: refused {}{}", port_, why,
               more == 0 ? "" : fmt::format(" ({} more since the last such line)", more));
}

}  // namespace cairnfs::rpc
