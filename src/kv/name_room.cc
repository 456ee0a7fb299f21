#include "kv/name_room.h"

#include <chrono>

#include "base/log.h"

namespace cairnfs::kv {

static constexpr auto kToldAgainAfter = std::chrono::minutes(1);

void RefusedNames::Tell(const Error& why) {
  const auto now = Clock::Now();
  {
    MutexLock lock(mutex_);
    if (was_told_ && now - told_at_ < kToldAgainAfter) return;
    was_told_ = true;
    told_at_ = now;
  }
  spdlog::warn(
      "the metadata is what is full, and new names and attributes are refused: {}; `cairnfs status "
      "--metadata` tells whose take how much",
      why.message);
}

}  // namespace cairnfs::kv
