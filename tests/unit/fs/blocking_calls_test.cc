// Requests on threads that may wait, whose callers are killed.
#include "fs/blocking_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>

#include "../../support/eventually.h"
#include "kv/patience.h"

namespace cairnfs::fs {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

constexpr seconds kSoon{20};

TEST(BlockingCalls, WhoIsKilledWaitsForTheStoreNoLonger) {
  std::atomic<bool> killed{false};
  std::promise<bool> waited;
  BlockingCalls calls("test", 2);
  calls.Post([&] { waited.set_value(kv::Patience::Sleep(nullptr, hours(1))); }, [&] { return killed.load(); },
             [](const Error&) { ADD_FAILURE() << "it has a thread"; });
  std::future<bool> result = waited.get_future();
  EXPECT_FALSE(IsReadyWithin(result, std::chrono::milliseconds(300)));
  killed = true;
  ASSERT_TRUE(IsReadyWithin(result, kSoon));
  EXPECT_FALSE(result.get());

  // What that thread does next is another's.
  std::atomic<int> patient{0};
  {
    std::promise<void> both;
    std::atomic<int> left{2};
    for (int i = 0; i < 2; i++) {
      calls.Post([&] {
        patient += kv::Patience::Sleep(nullptr, std::chrono::milliseconds(1)) ? 1 : 0;
        if (--left == 0) both.set_value();
      });
    }
    both.get_future().wait();
  }
  EXPECT_EQ(patient, 2);
}

TEST(BlockingCalls, WhoIsKilledWithoutAThreadIsRefused) {
  std::promise<void> go, began;
  std::promise<Error> refused;
  std::atomic<bool> killed{false}, ran{false};
  {
    BlockingCalls calls("test", 1);
    calls.Post([&] {
      began.set_value();
      go.get_future().wait();
    });
    began.get_future().wait();
    calls.Post([&] { ran = true; }, [&] { return killed.load(); },
               [&](const Error& error) { refused.set_value(error); });
    killed = true;
    auto error = refused.get_future();
    ASSERT_TRUE(IsReadyWithin(error, kSoon));
    EXPECT_EQ(error.get().code, ErrorCode::kInterrupted);
    go.set_value();
  }
  EXPECT_FALSE(ran);
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
    first.Post([&] { ran++; }, [] { return false; }, [&](const Error& why) { refused = why.code; });
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

TEST(BlockingCalls, WhoLivesIsLeftAlone) {
  std::atomic<int> ran{0}, asked{0};
  {
    BlockingCalls calls("test", 4);
    for (int i = 0; i < 100; i++) {
      calls.Post([&] { ran += kv::Patience::Sleep(nullptr, std::chrono::milliseconds(20)) ? 1 : 0; },
                 [&] {
                   asked++;
                   return false;
                 },
                 [](const Error&) { ADD_FAILURE() << "refused"; });
    }
  }
  EXPECT_EQ(ran, 100);
  EXPECT_GT(asked, 0);
}

}  // namespace
}  // namespace cairnfs::fs
