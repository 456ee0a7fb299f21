// Several hosts' DelegatedStores over one shared store in memory.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "../../support/passing_store.h"
#include "base/clock.h"
#include "coherence/delegated_store.h"
#include "fake_session.h"
#include "kv/engine.h"
#include "kv/hosted_store.h"
#include "meta/records.h"

namespace cairnfs::coherence {

using namespace meta;  // the records that are covered

using std::chrono::milliseconds;

// Passes all on, until its commits fail, whether they ran or not.
class UnsureStore final : public PassingOn<kv::KvStore> {
 public:
  using PassingOn::PassingOn;
  Result<uint64_t> Commit(const Context& context, const kv::Transaction& transaction) override {
    if (commits_fail_with) return MakeError(*commits_fail_with, "as the test says");
    if (next_commit_fails.exchange(false)) return MakeError(ErrorCode::kNoSpace, "as the test says");
    if (Status fits = kv::CheckLimits(transaction, limits_); !fits.ok()) return fits.error();
    if (auto tell = before_commit) tell(transaction);
    auto committed = PassingOn::Commit(context, transaction);
    if (auto once = std::exchange(before_answer, nullptr)) once();
    return committed;
  }
  kv::KvLimits limits() const override { return limits_; }

  kv::KvLimits limits_{1 << 20, 64 << 20};
  std::optional<ErrorCode> commits_fail_with;
  std::atomic<bool> next_commit_fails{false};
  std::function<void(const kv::Transaction&)> before_commit;
  std::function<void()> before_answer;  // once, between the next commit and its answer
};

// Its watches miss the next event when they are told to, and then the first look at what they missed fails.
class DeafStore final : public PassingStore {
 public:
  using PassingStore::PassingStore;
  Result<kv::KvRange> Range(const Context& context, std::string_view begin, std::string_view end,
                            size_t limit) override {
    if (next_range_fails.exchange(false)) return MakeError(ErrorCode::kUnavailable, "as the test says");
    return PassingStore::Range(context, begin, end, limit);
  }
  Result<std::unique_ptr<kv::KvWatch>> Watch(const Context& context, std::string_view begin, std::string_view end,
                                             uint64_t after_revision, kv::WatchCallbacks callbacks) override {
    auto changed = std::move(callbacks.changed);
    callbacks.changed = [this, changed = std::move(changed), lost = callbacks.lost](std::vector<kv::KvEvent> events,
                                                                                    uint64_t revision) {
      if (!missing.exchange(false)) return changed(std::move(events), revision);
      next_range_fails = true;
      lost(revision);
    };
    return PassingStore::Watch(context, begin, end, after_revision, std::move(callbacks));
  }

  std::atomic<bool> missing{false}, next_range_fails{false};
};

struct Host {
  Host(kv::SharedKvStore& store, int number, milliseconds ttl = std::chrono::minutes(10),
       DelegationOptions options = {})
      : membership(store, number, ttl), fenced(store) {
    options.reads_to_take = 4;
    options.rest_after_recall = milliseconds(1);
    names = std::make_unique<DelegatedStore>(store, fenced, membership, options);
  }
  FakeSession membership;
  UnsureStore fenced;
  std::unique_ptr<DelegatedStore> names;
};

class DelegatedStoreTest : public testing::Test {
 protected:
  DelegatedStoreTest() : engine_(kv::OpenMemoryEngine()), store_(*kv::HostedStore::Open(*engine_)) {}

  // An inode's record that says where it lies.
  static std::string RecordOf(uint32_t type, InodeId parent) {
    InodeRecord record;
    record.mode = type | 0644;
    record.nlink = 1;
    record.parent = parent;
    return record.Encode();
  }
  void MakeDirectory(InodeId id) {
    ASSERT_TRUE(
        store_->Commit({}, kv::Transaction().IfAbsent(InodeKey(id)).Put(InodeKey(id), RecordOf(S_IFDIR, kRootInode)))
            .ok());
  }
  void MakeFile(InodeId id, InodeId parent) {
    ASSERT_TRUE(store_->Commit({}, kv::Transaction().Put(InodeKey(id), RecordOf(S_IFREG, parent))).ok());
  }
  static void ReadUntilHeld(Host& host, const std::string& key, uint64_t held) {
    const auto until = Clock::Now() + std::chrono::seconds(60);
    while (host.names->Stats().held < held && Clock::Now() < until) {
      ASSERT_TRUE(host.names->Get({}, key).ok());
      Clock::SleepFor(milliseconds(1));
    }
    ASSERT_EQ(host.names->Stats().held, held);
    ASSERT_TRUE(host.names->Get({}, key).ok());  // and it is remembered
  }

  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::HostedStore> store_;
};

inline constexpr InodeId kDirectory{100}, kOther{101}, kFile{200};

inline std::optional<std::string> ValueOf(DelegatedStore& names, const std::string& key) {
  auto entry = names.Get({}, key);
  EXPECT_TRUE(entry.ok());
  if (!entry.ok() || !*entry) return std::nullopt;
  return (*entry)->value;
}

}  // namespace cairnfs::coherence
