// The log's lines that say which file an inode is.
#include "fs/error_names.h"

#include "base/clock.h"
#include "fixture.h"

namespace cairnfs::fs {
namespace {

class ErrorNamesTest : public testing::Test {
 protected:
  ErrorNamesTest() { engine_.name_scans_until_hold = kScansMax; }
  ~ErrorNamesTest() override {
    errors_.Stop();
    queue_.reset();
  }
  // Passes over all names so far.
  int Passes() const { return kScansMax - engine_.name_scans_until_hold; }

  static constexpr int kScansMax = 1'000'000;
  static constexpr int kThreads = 4;
  FullableEngine engine_;
  std::unique_ptr<kv::LocalKvStore> kv_ = *kv::LocalKvStore::Open(engine_);
  meta::Namespace names_{*kv_, [this](const std::vector<kv::KvWrite>& writes) { return kv_->CommitDurable(writes); }};
  std::unique_ptr<TaskQueue> queue_ = std::make_unique<TaskQueue>("names", kThreads);
  ErrorNames errors_{*kv_, names_, *queue_, /*records_name_directories=*/false};
};

TEST_F(ErrorNamesTest, InodesThatFailOneAfterTheOtherAreLookedForTogether) {
  const auto began = Clock::Now();
  for (uint64_t inode = 1; inode <= 40; ++inode) {
    errors_.Note(InodeId{inode});
    Clock::SleepFor(std::chrono::milliseconds(10));
  }
  const int passes = Passes();
  EXPECT_LE(passes, std::chrono::duration_cast<std::chrono::seconds>(Clock::Now() - began).count());
  EXPECT_TRUE(Eventually([&] { return Passes() > 0; })) << "after a while they are";
}

}  // namespace
}  // namespace cairnfs::fs
