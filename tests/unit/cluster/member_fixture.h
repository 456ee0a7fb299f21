// What the tests of membership share: one HostedStore on a memory engine as the cluster's store, and for each host a
// line to it that can be cut or made to lie.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "../../support/eventually.h"
#include "base/thread_annotations.h"
#include "cluster/membership.h"
#include "cluster/records.h"
#include "kv/engine.h"
#include "kv/hosted_store.h"

namespace cairnfs::cluster {

using std::chrono::milliseconds;

template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) {
    ADD_FAILURE() << ErrorCodeName(result.error().code) << ": " << result.error().message;
    abort();
  }
  return std::move(result).value();
}

template <typename T>
ErrorCode CodeOf(const Result<T>& result) {
  if (!result.ok()) return result.error().code;
  ADD_FAILURE() << "succeeded";
  return ErrorCode::kIo;
}

// A SharedKvStore as one host sees it.
class Line final : public kv::SharedKvStore {
 public:
  explicit Line(kv::SharedKvStore& store) : store_(store) {}

  std::atomic<bool> cut{false};  // every call fails with kUnavailable, and watches tell nothing
  std::atomic<bool> keep_alive_fails{false};
  std::atomic<bool> watches_are_silent{false};
  std::atomic<bool> commits_are_unsure{false};  // a commit runs, and its answer is lost
  std::atomic<bool> answers_are_gone{false};    // the same, and nobody will ever tell it
  std::atomic<int> lease_factor{1};             // leases last that many times as long as this host believes
  std::atomic<uint64_t> revisions_less{0};      // what reads and commits tell is less by this
  std::atomic<uint64_t> ranges_failed{0};       // reads of ranges while it was cut
  // Runs when a commit has been prepared, and before it reaches the store.
  std::function<void(const kv::Transaction&)> before_commit;

  Result<std::optional<kv::KvEntry>> Get(const Context& context, std::string_view key) override {
    if (cut) return Away();
    return store_.Get(context, key);
  }
  Result<kv::KvRange> Range(const Context& context, std::string_view begin, std::string_view end,
                            size_t limit) override {
    if (cut) {
      ranges_failed++;
      return Away();
    }
    auto range = store_.Range(context, begin, end, limit);
    if (range.ok()) range->revision -= revisions_less;
    return range;
  }
  Result<kv::KvSnapshot> Read(const Context& context, std::span<const kv::KvSpan> spans) override {
    if (cut) return Away();
    auto snapshot = store_.Read(context, spans);
    if (snapshot.ok()) snapshot->revision -= revisions_less;
    return snapshot;
  }
  Result<uint64_t> Commit(const Context& context, const kv::Transaction& transaction) override {
    if (before_commit) before_commit(transaction);
    if (cut) return Away();
    auto revision = store_.Commit(context, transaction);
    if (commits_are_unsure) return Away();
    if (answers_are_gone) return MakeError(ErrorCode::kStale, "nobody can tell whether it ran");
    if (revision.ok()) *revision -= revisions_less;
    return revision;
  }
  Status Sync(const Context&) override { return {}; }
  kv::KvLimits limits() const override { return store_.limits(); }

  Result<kv::LeaseId> GrantLease(const Context& context, milliseconds ttl) override {
    if (cut) return Away();
    return store_.GrantLease(context, ttl * lease_factor.load());
  }
  Result<milliseconds> KeepLeaseAlive(const Context& context, kv::LeaseId lease) override {
    if (cut || keep_alive_fails) return Away();
    auto left = store_.KeepLeaseAlive(context, lease);
    if (left.ok()) *left /= lease_factor.load();
    return left;
  }
  Status RevokeLease(const Context& context, kv::LeaseId lease) override {
    if (cut) return Away();
    return store_.RevokeLease(context, lease);
  }
  Result<std::unique_ptr<kv::KvWatch>> Watch(const Context& context, std::string_view begin, std::string_view end,
                                             uint64_t after_revision, kv::WatchCallbacks callbacks) override {
    callbacks_ = callbacks;
    callbacks.changed = [this, told = callbacks.changed](std::vector<kv::KvEvent> events, uint64_t revision) {
      if (!cut && !watches_are_silent) told(std::move(events), revision);
    };
    return store_.Watch(context, begin, end, after_revision, std::move(callbacks));
  }
  const kv::WatchCallbacks& callbacks() const { return callbacks_; }  // of the last watch

 private:
  static Error Away() { return MakeError(ErrorCode::kUnavailable, "the line is cut"); }
  kv::SharedKvStore& store_;
  kv::WatchCallbacks callbacks_;
};

class MemberTest : public testing::Test {
 protected:
  static NodeId IdOf(uint8_t number) {
    NodeId id;
    id.bytes.back() = std::byte{number};
    return id;
  }

  // A lease that no healthy member of a test loses, also on a machine that is slow; losing one is asked for.
  static MembershipOptions OptionsOf(uint8_t number) {
    MembershipOptions options;
    options.self.id = IdOf(number);
    options.self.name = "host" + std::to_string(number);
    options.self.address = "10.0.0." + std::to_string(number) + ":7000";
    options.self.domain = "rack" + std::to_string(number % 2);
    options.self.weight = number;
    options.lease = milliseconds(20'000);
    options.renew_every = milliseconds(20);
    return options;
  }
  // Its lease ends soon after it is not kept alive any more.
  static MembershipOptions BriefOptionsOf(uint8_t number) {
    MembershipOptions options = OptionsOf(number);
    options.lease = milliseconds(2000);
    return options;
  }

  // The members by their state in `member`'s view: "1+ 2- 3x" for up, down and out, and an f for those that are full.
  static std::string Seen(const Membership& member) {
    std::string seen;
    const ViewPtr view = member.view();
    for (const NodeInfo& node : view->nodes) {
      if (!seen.empty()) seen += ' ';
      seen += std::to_string(std::to_integer<int>(node.id.bytes.back()));
      seen += node.state == NodeState::kUp ? '+' : node.state == NodeState::kDown ? '-' : 'x';
      if (node.full) seen += 'f';
      if (node.is_drained()) seen += node.is_empty ? 'e' : 'd';
    }
    return seen;
  }
  static void ExpectSeen(const Membership& member, const std::string& expected) {
    EXPECT_TRUE(Eventually([&] { return Seen(member) == expected; })) << Seen(member) << ", and not " << expected;
  }
  static bool IsLost(const Membership& member) {
    auto session = member.session();
    return !session.ok() && session.error().code == ErrorCode::kStale;
  }
  // Ends the lease as the store does by itself when nobody keeps it alive.
  void EndSession(const Membership& member) { EXPECT_TRUE(store_->RevokeLease({}, Must(member.session()).lease).ok()); }

  static kv::Transaction PutOf(const std::string& key, const std::string& value = "v") {
    return kv::Transaction().Put(key, value);
  }
  bool Exists(const std::string& key) { return Must(store_->Get({}, key)).has_value(); }

  std::unique_ptr<kv::KvEngine> engine_ = kv::OpenMemoryEngine();
  std::unique_ptr<kv::HostedStore> store_ = Must(kv::HostedStore::Open(*engine_));
  Line line_{*store_};
};

}  // namespace cairnfs::cluster
