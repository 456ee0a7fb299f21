#include "fs/open_modes.h"

namespace cairnfs::fs {

std::optional<OpenMode> OpenModes::Decide(const Asked& asked, const Backing* backing) {
  if (asked.is_beside) {
    if (ordinary_count_ == 0) return OpenMode::kBeside;
    sent_back_at_ = Clock::Now();
    return std::nullopt;
  }
  if (ordinary_count_ > 0) return OpenMode::kOrdinary;
  const bool can_pass = asked.may_pass && backing != nullptr && !backing->is_behind();
  if (can_pass && (passed_count_ > 0 || !IsWithin(sent_back_at_, kSentFor))) return OpenMode::kPassed;
  if (passed_count_ > 0 || beside_count_ > 0) {
    sent_beside_at_ = Clock::Now();
    return std::nullopt;
  }
  if (IsWithin(sent_beside_at_, kSentFor / 2)) return std::nullopt;
  return OpenMode::kOrdinary;
}

bool OpenModes::NamesBeside(const Backing* backing) const {
  if (ordinary_count_ > 0) return false;
  // Also if nobody is passed any more: the next one may be before he comes, and he must not be sent again.
  if (IsWithin(sent_beside_at_, kSentFor)) return true;
  if (passed_count_ == 0) return beside_count_ > 0;
  // While somebody has it open by that id, so that the kernel need not drop the name again.
  return beside_count_ > 0 || (backing != nullptr && backing->is_behind());
}

}  // namespace cairnfs::fs
