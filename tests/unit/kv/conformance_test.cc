// The conformance suites over the stores of this room.
#include "conformance_suite.h"
#include "kv/hosted_store.h"
#include "shared_suite.h"

namespace cairnfs::kv {
namespace {

class LocalSubject final : public Subject {
 public:
  explicit LocalSubject(Setup setup) : store_(setup) {
    remembers_operations = setup != Setup::kRocksReopen;
    syncs_each_commit = setup == Setup::kRocksSync || setup == Setup::kRocksReopen;
  }
  KvStore& store() override { return store_; }
  void Reopen() override { store_.Reopen(); }

 private:
  StoreUnderTest store_;
};

ConformanceSetup Local(Setup setup) {
  return {SetupName(setup), [setup] { return std::make_unique<LocalSubject>(setup); }};
}

INSTANTIATE_TEST_SUITE_P(Local, KvConformance,
                         testing::Values(Local(Setup::kMemory), Local(Setup::kMemoryLayers), Local(Setup::kRocks),
                                         Local(Setup::kRocksLayers), Local(Setup::kRocksSync),
                                         Local(Setup::kRocksReopen)),
                         SetupNameOf);
INSTANTIATE_TEST_SUITE_P(Local, KvConcurrency, testing::Values(Local(Setup::kMemory), Local(Setup::kRocks)),
                         SetupNameOf);

class HostedSubject final : public SharedSubject {
 public:
  explicit HostedSubject(bool on_disk) : on_disk_(on_disk) {
    syncs_each_commit = on_disk;
    HostedSubject::Reopen();
  }
  SharedKvStore& shared() override { return handle_; }
  void Reopen() override {
    handle_.Set(nullptr);
    store_.reset();
    if (on_disk_) engine_.reset();
    if (engine_ == nullptr) engine_ = on_disk_ ? MustOpenRocks(directory_.path() + "/db") : OpenMemoryEngine();
    HostedStoreOptions options;
    options.history_bytes_max = kHistoryBytes;
    store_ = Must(HostedStore::Open(*engine_, options));
    handle_.Set(store_.get());
  }
  bool OverflowHistory() override {
    for (size_t bytes = 0; bytes <= kHistoryBytes; bytes += 10'000) {
      Must(store_->Commit({}, Transaction().Put("overflow", std::string(10'000, 'x'))));
    }
    return true;
  }

 private:
  static constexpr size_t kHistoryBytes = 1 << 20;
  const bool on_disk_;
  TemporaryDirectory directory_;
  std::unique_ptr<KvEngine> engine_;
  std::unique_ptr<HostedStore> store_;
  SharedHandle handle_;
};

ConformanceSetup Hosted(bool on_disk) {
  return {on_disk ? "HostedRocks" : "HostedMemory", [on_disk] { return std::make_unique<HostedSubject>(on_disk); }};
}
SharedSetup HostedShared(bool on_disk) {
  return {on_disk ? "HostedRocks" : "HostedMemory", [on_disk] { return std::make_unique<HostedSubject>(on_disk); }};
}

const auto kHosted = testing::Values(Hosted(false), Hosted(true));
INSTANTIATE_TEST_SUITE_P(Hosted, KvConformance, kHosted, SetupNameOf);
INSTANTIATE_TEST_SUITE_P(Hosted, KvConcurrency, kHosted, SetupNameOf);
INSTANTIATE_TEST_SUITE_P(Hosted, SharedConformance, testing::Values(HostedShared(false), HostedShared(true)),
                         SharedSetupNameOf);

TEST(PrefixEnd, IsTheNextPrefix) {
  EXPECT_EQ(PrefixEnd("a"), "b");
  EXPECT_EQ(PrefixEnd("a\xff"), "b");
  EXPECT_EQ(PrefixEnd(std::string("a\0", 2)), std::string("a\1", 2));
  EXPECT_EQ(PrefixEnd("\xff\xff"), "");
  EXPECT_EQ(PrefixEnd(""), "");
}

TEST(LocalKvStore, RefusesLeases) {
  StoreUnderTest store(Setup::kMemory);
  Transaction transaction;
  transaction.writes.push_back(KvWrite{"a", "1", 7});
  Result<uint64_t> result = store.Commit({}, transaction);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(Must(store.Get({}, "a")).has_value());
}

}  // namespace
}  // namespace cairnfs::kv
