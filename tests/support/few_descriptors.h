// A lack of descriptors, on purpose.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace cairnfs {

// While it lives, this process opens no file whose descriptor would be `limit` or higher.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit tight{limit, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  }
  ~DescriptorLimit() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  DescriptorLimit(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

// While it lives, this process may open only so many more files.
class FewDescriptors {
 public:
  explicit FewDescriptors(unsigned left) : limit_(LowestFree() + left) {}

 private:
  static rlim_t LowestFree() {
    const int lowest_free = dup(0);
    EXPECT_GE(lowest_free, 0);
    close(lowest_free);
    return static_cast<rlim_t>(lowest_free);
  }

  const DescriptorLimit limit_;
};

}  // namespace cairnfs
