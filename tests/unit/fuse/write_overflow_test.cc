#include "fuse/write_overflow.h"

#include <gtest/gtest.h>

#include "../../support/no_threads.h"

namespace cairnfs::fuse {
namespace {

Result<io::BufferRef> NoBuffer() { return MakeError(ErrorCode::kNoSpace, "there is none"); }

// At the start of the mount, and not when it runs out of memory.
TEST(WriteOverflowTest, WithoutAThreadItDoesNotStart) {
  WriteOverflow overflow(NoBuffer);
  {
    const NoThreads none;
    const Status started = overflow.Start();
    ASSERT_FALSE(started.ok());
    EXPECT_EQ(started.error().code, ErrorCode::kUnavailable);
  }
  EXPECT_TRUE(overflow.Start().ok());
  overflow.Stop();
}

}  // namespace
}  // namespace cairnfs::fuse
