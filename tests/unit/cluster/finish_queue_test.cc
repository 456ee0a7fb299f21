// Requests that take long, and callers that do not wait for them.
#include "cluster/finish_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <optional>

namespace cairnfs::cluster {
namespace {

class FinishQueueTest : public testing::Test {
 protected:
  void SetUp() override {
    queue_.emplace(1);
    Post(run_first_, [this] {
      begun_.set_value();
      go_on_.get_future().wait();
    });
    begun_.get_future().wait();  // the one thread is taken from here on
  }
  struct Counts {
    std::atomic<int> run{0}, dropped{0};
    std::atomic<bool> is_gone{false};
  };
  void Post(
      Counts& counts, const std::function<void()>& act = [] {}) {
    PeerServer::Respond respond(
        [&counts](const Result<PeerMessage>& reply) {
          EXPECT_FALSE(reply.ok());
          counts.dropped++;
        },
        [&counts] { return counts.is_gone.load(); });
    auto run = [&counts, act] {
      counts.run++;
      act();
    };
    queue_->Post(run, respond);
  }
  void GoOnAndEnd() {
    go_on_.set_value();
    queue_.reset();
  }

  std::promise<void> begun_, go_on_;
  Counts run_first_;
  std::optional<FinishQueue> queue_;
};

TEST_F(FinishQueueTest, WhatNobodyWaitsForIsNotBegun) {
  Counts gone, here;
  Post(gone);
  Post(here);
  gone.is_gone = true;
  GoOnAndEnd();
  EXPECT_EQ(gone.run, 0);
  EXPECT_EQ(gone.dropped, 1);
  EXPECT_EQ(here.run, 1);
  EXPECT_EQ(here.dropped, 0);
  EXPECT_EQ(run_first_.run, 1);
}

TEST_F(FinishQueueTest, WhatNobodyWaitsForDoesNotPileUp) {
  constexpr int kGone = 10'000, kHere = 100;
  Counts gone, here;
  gone.is_gone = true;
  for (int i = 0; i < kHere; i++) Post(here);
  size_t most = 0;
  for (int i = 0; i < kGone; i++) {
    Post(gone);
    most = std::max(most, queue_->waiting());
  }
  EXPECT_LE(most, 4u * kHere);
  EXPECT_EQ(here.dropped, 0);
  GoOnAndEnd();
  EXPECT_EQ(gone.run, 0);
  EXPECT_EQ(gone.dropped, kGone);
  EXPECT_EQ(here.run, kHere);
}

}  // namespace
}  // namespace cairnfs::cluster
