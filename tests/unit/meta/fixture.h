// A formatted namespace on a memory engine, a clock that steps, and a store in which a test may step in between.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <functional>
#include <memory>

#include "../../support/passing_store.h"
#include "base/clock.h"
#include "kv/local_store.h"
#include "meta/namespace.h"

namespace cairnfs::meta {

// Each question for the time of day is answered with one a millisecond later.
class SteppingTime final : public TimeSource {
 public:
  SteppingTime() { Clock::Replace(this); }
  ~SteppingTime() override { Clock::Replace(nullptr); }
  Clock::time_point Now() override { return std::chrono::steady_clock::now(); }
  Timestamp WallTime() override {
    const int64_t tick = ticks_.fetch_add(1) + 1;
    return {1'700'000'000 + tick / 1000, static_cast<uint32_t>(tick % 1000 * 1'000'000)};
  }
  void WaitUntil(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                 Clock::time_point time) override {
    condition.wait_until(lock, time);
  }

 private:
  std::atomic<int64_t> ticks_{0};
};

// Passes all on. `before_commit` runs once before the next commit (an operation that came in between); the next
// `conflicts` commits fail with kConflict; counts Gets and Commits.
class InterferingStore final : public PassingOn<kv::KvStore> {
 public:
  using PassingOn::PassingOn;
  Result<std::optional<kv::KvEntry>> Get(const Context& context, std::string_view key) override {
    gets++;
    return PassingOn::Get(context, key);
  }
  Result<uint64_t> Commit(const Context& context, const kv::Transaction& transaction) override {
    if (before_commit) std::exchange(before_commit, nullptr)();
    commits++;
    if (conflicts > 0) {
      conflicts--;
      return MakeError(ErrorCode::kConflict, "injected");
    }
    if (!commit_error.empty()) return MakeError(ErrorCode::kIo, commit_error);
    if (transaction.writes.size() > limits_.operations_per_transaction_max ||
        transaction.compares.size() > limits_.operations_per_transaction_max) {
      return MakeError(ErrorCode::kTooLarge, "past the limit of the test");
    }
    return PassingOn::Commit(context, transaction);
  }
  kv::KvLimits limits() const override { return limits_; }

  std::function<void()> before_commit;
  int conflicts = 0;
  std::string commit_error;
  std::atomic<uint64_t> gets{0}, commits{0};
  kv::KvLimits limits_{1 << 20, 64 << 20};
};

// "ok", or the name of the error's code.
template <typename T>
std::string Outcome(const Result<T>& result) {
  return result.ok() ? "ok" : std::string(ErrorCodeName(result.error().code));
}
// "ok", or the error's message.
template <typename T>
std::string Message(const Result<T>& result) {
  return result.ok() ? "ok" : Outcome(result) + ": " + result.error().message;
}

#define EXPECT_CODE(expression, code) EXPECT_EQ(Outcome(expression), ErrorCodeName(code))
#define EXPECT_OK(expression) EXPECT_EQ(Message(expression), "ok")

class NamespaceTest : public testing::Test {
 protected:
  static constexpr uint32_t kUid = 1000, kGid = 100;

  void SetUp() override {
    names_.reset();
    store_.reset();
    local_.reset();
    engine_ = kv::OpenMemoryEngine();
    Reopen();
    FilesystemHeader header;
    header.uuid = "0123456789abcdef";
    header.created = {1, 2};
    header.chunk_params = "params";
    ASSERT_TRUE(names().Format({}, header, 0, 0).ok());
  }

  // As after a restart: what was not synced is lost, as are numbers that were reserved and not used.
  void Reopen() {
    names_.reset();
    store_.reset();
    auto local = kv::LocalKvStore::Open(*engine_);
    ASSERT_TRUE(local.ok());
    local_ = std::move(*local);
    store_ = std::make_unique<InterferingStore>(*local_);
    names_ = MakeNamespace();
  }

  std::unique_ptr<Namespace> MakeNamespace(kv::KvStore* store = nullptr) {
    return std::make_unique<Namespace>(
        store == nullptr ? *store_ : *store,
        [this](const std::vector<kv::KvWrite>& writes) {
          durable_puts_++;
          return local_->CommitDurable(writes);
        },
        options_);
  }

  Namespace& names() { return *names_; }

  InodeId Make(InodeId parent, std::string_view name, uint32_t mode) {
    CreateParams params;
    params.mode = mode;
    params.uid = kUid;
    params.gid = kGid;
    if (S_ISLNK(mode)) params.symlink_target = "target";
    auto attr = names().Create({}, parent, name, params);
    EXPECT_TRUE(attr.ok()) << (attr.ok() ? "" : attr.error().message);
    return attr.ok() ? attr->inode : InodeId{};
  }
  InodeId MakeFile(InodeId parent, std::string_view name) { return Make(parent, name, S_IFREG | 0644); }
  InodeId MakeDirectory(InodeId parent, std::string_view name) { return Make(parent, name, S_IFDIR | 0755); }

  Attr AttrNow(InodeId inode) {
    auto attr = names().GetAttr({}, inode);
    EXPECT_TRUE(attr.ok()) << (attr.ok() ? "" : attr.error().message);
    return attr.ok() ? *attr : Attr{};
  }
  std::vector<std::string> Names(InodeId directory) {
    auto entries = names().ReadDirectory({}, directory, "", 1 << 20);
    EXPECT_TRUE(entries.ok());
    std::vector<std::string> result;
    if (entries.ok()) {
      for (const auto& entry : *entries) result.push_back(entry.name);
    }
    return result;
  }
  size_t KeyCount(std::string_view prefix) {
    auto range = local_->Range({}, prefix, kv::PrefixEnd(prefix), 0);
    EXPECT_TRUE(range.ok());
    return range.ok() ? range->entries.size() : 0;
  }
  void PutFile(InodeId inode, const FileRecord& record) {
    EXPECT_OK(local_->Commit({}, kv::Transaction().Put(FileKey(inode), record.Encode())));
  }
  Result<RenameResult> Move(InodeId from, std::string_view from_name, InodeId to, std::string_view to_name,
                            RenameMode mode = RenameMode::kReplace) {
    return names().Rename({}, {from, std::string(from_name), to, std::string(to_name), mode});
  }

  NamespaceOptions options_;
  SteppingTime time_;
  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::LocalKvStore> local_;
  std::unique_ptr<InterferingStore> store_;
  std::unique_ptr<Namespace> names_;
  int durable_puts_ = 0;
};

}  // namespace cairnfs::meta
