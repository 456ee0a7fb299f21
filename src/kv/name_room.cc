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
      "the metadata is what is full, and what takes more of it is refused: {}; `cairnfs status --metadata` tells "
      "whose takes how much",
      why.message);
}

Status NameRoom::Admit(NameChange change, uint32_t uid, uint64_t unwritten_bytes) {
  Status judged = Judge(change, uid, unwritten_bytes);
  if (!judged.ok()) refused_.Tell(judged.error());
  return judged;
}

}  // namespace cairnfs::kv
