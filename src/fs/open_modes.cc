#include "fs/open_modes.h"

#include <algorithm>

namespace cairnfs::fs {

OpenModes::SentThreads::iterator OpenModes::FindSent(uint32_t thread) {
  if (thread == 0) return sent_.end();
  return std::find_if(sent_.begin(), sent_.end(), [thread](const Sent& sent) { return sent.thread == thread; });
}

void OpenModes::NoteSent(uint32_t thread) {
  if (thread == 0) return;
  if (const auto before = FindSent(thread); before != sent_.end()) sent_.erase(before);
  if (sent_.size() == kSentMax) sent_.erase(sent_.begin());
  sent_.push_back({thread, Clock::Now()});
}

bool OpenModes::ComesAgain(uint32_t thread) {
  const auto sent = FindSent(thread);
  return sent != sent_.end() && IsWithin(sent->at, kSentFor);
}

void OpenModes::NoteOpened(OpenMode mode, uint32_t thread) {
  CountOf(mode)++;
  if (const auto sent = FindSent(thread); sent != sent_.end()) sent_.erase(sent);
}

std::optional<OpenMode> OpenModes::Decide(const Asked& asked, const Backing* backing) {
  if (asked.is_beside) {
    if (ordinary_count_ == 0) return OpenMode::kBeside;
    sent_back_at_ = Clock::Now();
    NoteSent(asked.thread);
    return std::nullopt;
  }
  if (ordinary_count_ > 0) return OpenMode::kOrdinary;
  const bool is_current = backing != nullptr && !backing->is_behind();
  if (asked.may_pass && is_current && (passed_count_ > 0 || !IsWithin(sent_back_at_, kSentFor))) {
    return OpenMode::kPassed;
  }
  const bool comes_again = ComesAgain(asked.thread);
  // Others are passed anyway, and he may read the file.
  if (comes_again && asked.only_reads && is_current && passed_count_ > 0) return OpenMode::kPassed;
  if (passed_count_ > 0 || beside_count_ > 0) {
    sent_beside_at_ = Clock::Now();
    NoteSent(asked.thread);
    return std::nullopt;
  }
  if (!comes_again && IsWithin(sent_beside_at_, kSentFor / 2)) {
    NoteSent(asked.thread);
    return std::nullopt;
  }
  return OpenMode::kOrdinary;
}

bool OpenModes::NamesBeside(const Backing* backing, uint32_t thread) {
  if (ordinary_count_ > 0) return false;
  // He was sent, and comes late: he must not be sent again. Only his next look-up is taken for that of his open.
  if (const auto sent = FindSent(thread); sent != sent_.end() && !IsWithin(sent->at, kSentFor)) {
    sent_.erase(sent);
    sent_beside_at_ = Clock::Now();
  }
  // Also if nobody is passed any more: the next one may be before he comes, and he must not be sent again.
  if (IsWithin(sent_beside_at_, kSentFor)) return true;
  if (passed_count_ == 0) return beside_count_ > 0;
  // While somebody has it open by that id, so that the kernel need not drop the name again.
  return beside_count_ > 0 || (backing != nullptr && backing->is_behind());
}

}  // namespace cairnfs::fs
