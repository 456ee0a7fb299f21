// A host's session for tests of what runs under one.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "base/clock.h"
#include "cluster/membership.h"
#include "kv/shared_store.h"

namespace cairnfs::coherence {

using std::chrono::milliseconds;

// A session without anything behind it but a lease.
class FakeSession final : public cluster::Membership {
 public:
  FakeSession(kv::SharedKvStore& store, int number, milliseconds ttl) {
    self_.bytes[0] = static_cast<std::byte>(number);
    session_.key = "S" + std::string(self_.AsKey());
    Begin(store, ttl);
  }
  // The first session, or another.
  void Begin(kv::SharedKvStore& store, milliseconds ttl) {
    auto lease = store.GrantLease({}, ttl);
    EXPECT_TRUE(lease.ok());
    session_.lease = *lease;
    session_.number++;
    kv::Transaction transaction;
    transaction.writes.push_back({session_.key, "", session_.lease});
    session_.revision = *store.Commit({}, transaction);
    expires_ = Clock::Now() + ttl;
  }
  const cluster::NodeId& self() const override { return self_; }
  cluster::ViewPtr view() const override { return std::make_shared<cluster::View>(); }
  Result<Session> WaitForSession(const Context&) const override { return session_; }
  void ReportLost(const Session&, const Loss&) override {}
  cluster::MembershipStats stats() const override { return {}; }
  std::shared_ptr<void> OnChange(std::function<void(const cluster::ViewPtr&)>) override { return nullptr; }
  Result<Session> session() const override {
    if (auto between = std::exchange(between_calls, nullptr)) between();
    if (LeaseHolds()) return session_;
    return MakeError(ErrorCode::kUnavailable, "the lease may have ended");
  }
  bool LeaseHolds() const override { return Clock::Now() < expires_.load() - milliseconds(100); }
  void OnLost(std::function<void()>) override {}
  Status Rejoin() override { return {}; }
  // Called at the next call of session(), once.
  mutable std::function<void()> between_calls;
  kv::LeaseId lease() const { return session_.lease; }
  // By this host's clock; the store may keep it yet.
  void LetLeaseEnd() { expires_ = Clock::Now(); }
  void SetFull(bool) override {}
  Status SetDrain(const cluster::NodeId&, Drain) override { return {}; }
  void SetEmpty(bool, uint64_t) override {}
  Status Remove(const cluster::NodeId&, Removal) override { return {}; }
  Status Replace(const cluster::NodeId&, PlaceName) override { return {}; }

 private:
  cluster::NodeId self_;
  Session session_;
  std::atomic<Clock::time_point> expires_;
};

}  // namespace cairnfs::coherence
