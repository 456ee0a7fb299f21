#include "fs/open_modes.h"

#include <algorithm>

namespace cairnfs::fs {

OpenModes::SentThread* OpenModes::FindSent(uint32_t thread) {
  if (thread == 0 || !sent_) return nullptr;
  std::vector<SentThread>& threads = sent_->threads;
  const auto found =
      std::find_if(threads.begin(), threads.end(), [thread](const SentThread& sent) { return sent.thread == thread; });
  return found == threads.end() ? nullptr : &*found;
}

void OpenModes::ForgetSent(uint32_t thread) {
  if (const SentThread* sent = FindSent(thread))
    sent_->threads.erase(sent_->threads.begin() + (sent - sent_->threads.data()));
}

void OpenModes::NoteSent(std::optional<Clock::time_point> Sent::*at, uint32_t thread) {
  if (!sent_) sent_ = std::make_unique<Sent>();
  if (at != nullptr) (*sent_).*at = Clock::Now();
  if (thread == 0) return;
  ForgetSent(thread);
  std::vector<SentThread>& threads = sent_->threads;
  if (threads.size() == kThreadsMax) threads.erase(threads.begin());
  threads.push_back({thread, Clock::Now()});
}

bool OpenModes::ComesAgain(uint32_t thread) {
  const SentThread* sent = FindSent(thread);
  return sent != nullptr && IsWithin(sent->at, kSentFor);
}

void OpenModes::NoteOpened(OpenMode mode, uint32_t thread) {
  CountOf(mode)++;
  ForgetSent(thread);
}

std::optional<OpenMode> OpenModes::Decide(const Asked& asked, const Backing* backing) {
  if (asked.is_beside) {
    if (ordinary_count_ == 0) return OpenMode::kBeside;
    NoteSent(&Sent::back_at, asked.thread);
    return std::nullopt;
  }
  if (ordinary_count_ > 0) return OpenMode::kOrdinary;
  const bool is_current = backing != nullptr && !backing->is_behind();
  if (asked.may_pass && is_current && (passed_count_ > 0 || !WasSent(&Sent::back_at, kSentFor))) {
    return OpenMode::kPassed;
  }
  const bool comes_again = ComesAgain(asked.thread);
  // Others are passed anyway, and he may read the file.
  if (comes_again && asked.only_reads && is_current && passed_count_ > 0) return OpenMode::kPassed;
  if (passed_count_ > 0 || beside_count_ > 0) {
    NoteSent(&Sent::beside_at, asked.thread);
    return std::nullopt;
  }
  if (!comes_again && WasSent(&Sent::beside_at, kSentFor / 2)) {
    NoteSent(nullptr, asked.thread);
    return std::nullopt;
  }
  return OpenMode::kOrdinary;
}

bool OpenModes::NamesBeside(const Backing* backing, uint32_t thread) {
  if (ordinary_count_ > 0) return false;
  // He was sent, and comes late: he must not be sent again. Only his next look-up is taken for that of his open.
  if (const SentThread* sent = FindSent(thread); sent != nullptr && !IsWithin(sent->at, kSentFor)) {
    ForgetSent(thread);
    sent_->beside_at = Clock::Now();
  }
  // Also if nobody is passed any more: the next one may be before he comes, and he must not be sent again.
  if (WasSent(&Sent::beside_at, kSentFor)) return true;
  if (passed_count_ == 0) return beside_count_ > 0;
  // While somebody has it open by that id, so that the kernel need not drop the name again.
  return beside_count_ > 0 || (backing != nullptr && backing->is_behind());
}

}  // namespace cairnfs::fs
