// Requests on threads that may wait, whose callers are killed.
#include "fs/blocking_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <stop_token>

namespace cairnfs::fs {
namespace {

// Has the only thread of `calls` until it goes.
class Busy {
 public:
  explicit Busy(BlockingCalls& calls) {
    std::promise<void> began;
    calls.Post([&began, goes = go_.get_future().share()] {
      began.set_value();
      goes.wait();
    });
    began.get_future().wait();
  }
  ~Busy() { go_.set_value(); }

 private:
  std::promise<void> go_;
};

TEST(BlockingCalls, WhoIsKilledWithoutAThreadIsRefused) {
  std::stop_source kill;
  std::optional<Error> refused;
  std::atomic<bool> ran{false};
  {
    BlockingCalls calls("test", 1);
    const Busy busy(calls);
    calls.Post(
        Context(kill.get_token()), [&] { ran = true; }, [&](const Error& why) { refused = why; });
    EXPECT_FALSE(refused);
    kill.request_stop();
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->code, ErrorCode::kInterrupted);
  }
  EXPECT_FALSE(ran);
}

TEST(BlockingCalls, WhoIsKilledBeforeTheCallIsRefused) {
  std::stop_source kill;
  kill.request_stop();
  int refused = 0;
  BlockingCalls calls("test", 1);
  calls.Post(
      Context(kill.get_token()), [] { ADD_FAILURE() << "it runs"; }, [&](const Error&) { refused++; });
  EXPECT_EQ(refused, 1);
}

TEST(BlockingCalls, WhoHasAThreadIsNotRefused) {
  std::stop_source kill;
  std::promise<void> ended;
  BlockingCalls calls("test", 1);
  calls.Post(
      Context(kill.get_token()),
      [&] {
        kill.request_stop();
        ended.set_value();
      },
      [](const Error&) { ADD_FAILURE() << "it has a thread"; });
  ended.get_future().wait();
}

TEST(BlockingCalls, TwoThatPostToEachOtherAreStoppedOneAfterTheOther) {
  std::promise<void> go, began;
  std::atomic<bool> is_posted{true};
  std::atomic<ErrorCode> refused{ErrorCode::kIo};
  std::atomic<int> ran{0};
  BlockingCalls first("first", 1), second("second", 1);
  second.Post([&] {
    began.set_value();
    go.get_future().wait();
    is_posted = first.Post([&] { ran++; });
    first.Post(
        Context(), [&] { ran++; }, [&](const Error& why) { refused = why.code; });
  });
  first.Post([&] { second.Post([&] { ran++; }); });
  began.get_future().wait();
  first.Stop();
  go.set_value();
  second.Stop();
  EXPECT_FALSE(is_posted);
  EXPECT_EQ(refused, ErrorCode::kUnavailable);
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace cairnfs::fs
