#include "fs/open_modes.h"

namespace cairnfs::fs {

std::optional<OpenMode> OpenModes::Decide(const Asked& asked, const Backing* backing) {
  if (asked.is_beside) return OpenMode::kBeside;
  const bool can_pass = asked.may_pass && backing != nullptr && !backing->is_behind();
  if (IsPassed(backing)) {
    if (can_pass) return OpenMode::kPassed;
    sent_at_ = Clock::Now();
    return std::nullopt;
  }
  return can_pass && own_count_ == 0 ? OpenMode::kPassed : OpenMode::kOrdinary;
}

bool OpenModes::NamesBeside(const Backing* backing) const {
  // Also if nobody is passed any more: the next one may be before he comes, and he must not be sent again.
  if (sent_at_ && Clock::Now() - *sent_at_ < kSentFor) return true;
  // While somebody has it open by that id, so that the kernel need not drop the name again.
  return IsPassed(backing) && (beside_count_ > 0 || backing->is_behind());
}

}  // namespace cairnfs::fs
