// Names in a real etcd of a small quota, which keeps room for removals; and by what members tell their quota.
#include <grpcpp/grpcpp.h>

#include "etcd.grpc.pb.h"
#include "kvnet/etcd_room.h"
#include "support.h"

namespace cairnfs::kvnet {
namespace {

constexpr uint64_t kMib = 1 << 20;
// Of so small a quota three quarters are kept, and users get a sixteenth.
constexpr uint64_t kSmall = 64 * kMib;
constexpr uint32_t kUser = 7;
// Keys of 20 kB that fit for users, and for root beside them.
constexpr int kForUsers = 120, kForRoot = 400;

std::unique_ptr<EtcdStore> StoreIn(std::vector<std::string> addresses) {
  EtcdOptions options;
  options.endpoints = std::move(addresses);
  return Must(EtcdStore::Create(options));
}

class SmallEtcd : public ::testing::Test {
 protected:
  // It knows the quota.
  std::unique_ptr<EtcdStore> Store() const {
    etcd_.WaitUntilReady();
    auto store = StoreIn(etcd_.Addresses());
    EXPECT_EQ(store->RoomForNames(), std::nullopt);
    EXPECT_TRUE(Eventually([&] {
      MustSucceed(store->Housekeep({}, Compacts::kNo));
      return store->RoomForNames() && *store->RoomForNames() <= kSmall / 16;
    }));
    EXPECT_GT(*store->RoomForNames(), kSmall / 32);
    return store;
  }
  static Transaction Making(const std::string& key, uint32_t uid, size_t bytes = 20'000) {
    Transaction transaction = Transaction().IfAbsent(key).Put(key, std::string(bytes, 'v'));
    transaction.makes_names_for = uid;
    return transaction;
  }
  // Makes so many keys for the user at least, and then further ones until one is refused; how many. What was let in
  // counts twice for a second or more: once as let in, and once as in use.
  static int Fill(EtcdStore& store, const std::string& prefix, uint32_t uid, int count_min) {
    for (int made = 0; made < 10'000; ++made) {
      const auto make = [&] { return store.Commit({}, Making(prefix + std::to_string(made), uid)); };
      if (made < count_min) {
        EXPECT_TRUE(Eventually([&] { return make().ok(); }));
        continue;
      }
      const auto result = make();
      if (result.ok()) continue;
      EXPECT_EQ(result.error().code, ErrorCode::kNoSpace) << result.error().message;
      return made;
    }
    ADD_FAILURE() << "nothing is refused";
    return 0;
  }

  const EtcdCluster etcd_{1, kSmall};
};

TEST_F(SmallEtcd, IsFullForUsersThenForRootAndRemovalsGoOn) {
  auto store = Store();
  const int of_user = Fill(*store, "user/", kUser, kForUsers);
  EXPECT_LT(*store->RoomForNames(), EtcdCostOf(Making("user/1000", kUser)));
  const int of_root = Fill(*store, "root/", 0, kForRoot);
  EXPECT_EQ(store->RoomForNames(), 0u);
  // One that is there already is no lack of room.
  const auto conflict = store->Commit({}, Making("user/0", 0));
  ASSERT_FALSE(conflict.ok());
  EXPECT_EQ(conflict.error().code, ErrorCode::kConflict) << conflict.error().message;

  const auto lease = Must(store->GrantLease({}, std::chrono::minutes(1)));
  Transaction locked;
  locked.writes.push_back({"a lock", "of a session", lease});
  Must(store->Commit({}, locked));

  const std::jthread housekeeper([&](const std::stop_token& stop) {
    do MustSucceed(store->Housekeep({}, Compacts::kYes));
    while (Context(stop).Sleep(milliseconds(100)));
  });
  for (int i = 0; i < of_user; ++i) Must(store->Commit({}, Transaction().Delete("user/" + std::to_string(i))));
  for (int i = 0; i < of_root; ++i) Must(store->Commit({}, Transaction().Delete("root/" + std::to_string(i))));
  // While a compaction writes its file anew, etcd counts what it writes and what it is to free.
  for (int i = 0; i < kForUsers; ++i) {
    EXPECT_TRUE(Eventually([&] { return store->Commit({}, Making("again/" + std::to_string(i), kUser)).ok(); }));
  }
}

TEST_F(SmallEtcd, AnAlterationIsRefusedOnlyWhereItLengthens) {
  auto store = Store();
  Fill(*store, "root/", 0, kForRoot);
  Transaction altering = Transaction().Put("root/0", std::string(40'000, 'v'));
  altering.may_lengthen = true;
  Result<uint64_t> altered = store->Commit({}, altering);
  // What is not judged, as marks and sessions, takes the rest.
  for (int i = 0; altered.ok() && i < 1'000; ++i) {
    Must(store->Commit({}, Transaction().Put("other/" + std::to_string(i), std::string(20'000, 'v'))));
    altering.writes.front().value->push_back('v');
    altered = store->Commit({}, altering);
  }
  ASSERT_FALSE(altered.ok());
  EXPECT_EQ(altered.error().code, ErrorCode::kNoSpace) << altered.error().message;
  altering.writes.front().value = "shorter";
  Must(store->Commit({}, altering));
  altering.IfAbsent("root/0");
  EXPECT_EQ(store->Commit({}, altering).error().code, ErrorCode::kConflict);
}

// Of an etcd that uses 300 MiB, and has no metrics.
class StatusOnly final : public etcdserverpb::Maintenance::Service {
 public:
  explicit StatusOnly(uint64_t quota) : quota_(quota) {
    int port = 0;
    server_ = grpc::ServerBuilder()
                  .AddListeningPort(OwnAddress() + ":0", grpc::InsecureServerCredentials(), &port)
                  .RegisterService(this)
                  .BuildAndStart();
    store_ = StoreIn({OwnAddress() + ":" + std::to_string(port)});
  }
  std::optional<uint64_t> Room() {
    Eventually([&] {
      MustSucceed(store_->Housekeep({}, Compacts::kNo));
      return store_->RoomForNames().has_value();
    });
    return store_->RoomForNames();
  }

 private:
  grpc::Status Status(grpc::ServerContext* /*call*/, const etcdserverpb::StatusRequest* /*request*/,
                      etcdserverpb::StatusResponse* response) override {
    response->set_dbsize(400 * kMib);
    response->set_dbsizeinuse(300 * kMib);
    response->set_dbsizequota(static_cast<int64_t>(quota_));
    return grpc::Status::OK;
  }

  const uint64_t quota_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<EtcdStore> store_;
};

TEST(EtcdQuota, IsThatOfTheStatusWhereItHasOne) {
  EXPECT_EQ(StatusOnly(8192 * kMib).Room(), (8192 - 300 - 1024 * 5 / 4) * kMib);
}

TEST(EtcdQuota, IsTheDefaultWhereNothingTellsIt) { EXPECT_EQ(StatusOnly(0).Room(), (2048 - 300 - 384 * 5 / 4) * kMib); }

}  // namespace
}  // namespace cairnfs::kvnet
