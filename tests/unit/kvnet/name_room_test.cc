// Names that hosts make in a store of another node, which keeps room for removing some.
#include <thread>

#include "support.h"

namespace cairnfs::kvnet {
namespace {

constexpr uint32_t kHog = 7, kOther = 8;

class FullOfOneUser final : public kv::NameRoom {
 public:
  Status Judge(kv::NameChange change, uint32_t uid, uint64_t /*unwritten_bytes*/) override {
    if (change == kv::NameChange::kMakes && uid != kHog) return {};
    return MakeError(ErrorCode::kNoSpace, "user 7 has more than half of it");
  }
  uint64_t BytesForUsers(uint64_t /*unwritten_bytes*/) const override { return 5 << 20; }
};

class NodeWithRoom : public ::testing::Test {
 protected:
  ~NodeWithRoom() override { node_.store().SetNameRoom(nullptr); }
  std::unique_ptr<kv::SharedKvStore> Client(milliseconds give_up_after = std::chrono::minutes(10)) {
    RemoteOptions options;
    options.retry.give_up_after = give_up_after;
    return Must(MakeNodeStore(node_.address(), options));
  }
  static Result<uint64_t> Make(kv::KvStore& store, const std::string& name, std::optional<uint32_t> uid) {
    Transaction transaction = Transaction().IfAbsent(name).Put(name, "");
    transaction.makes_names_for = uid;
    return store.Commit({}, transaction);
  }

  FullOfOneUser room_;  // outlives the node
  Node node_{"", {.keeps_room = true}};
};

TEST_F(NodeWithRoom, TheUserForWhomANameIsMadeIsJudgedThere) {
  node_.store().SetNameRoom(&room_);
  const auto store = Client();
  const auto refused = Make(*store, "a", kHog);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_NE(refused.error().message.find("user 7 has more than half"), std::string::npos) << refused.error().message;
  EXPECT_EQ(Must(store->Get({}, "a")), std::nullopt);
  Must(Make(*store, "a", kOther));
  Must(Make(*store, "b", std::nullopt));  // as a host of an earlier version says it
  Transaction longer = Transaction().Put("b", "longer");
  longer.may_lengthen = true;
  EXPECT_FALSE(store->Commit({}, longer).ok());
  longer.writes.front().value = "";
  Must(store->Commit({}, longer));
  Must(store->Commit({}, Transaction().Delete("a")));
}

TEST_F(NodeWithRoom, WhileTheNodeStartsNamesWaitAndAllElseGoesOn) {
  const auto store = Client(milliseconds(100));
  const auto refused = Make(*store, "a", kOther);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable) << refused.error().message;
  Must(Make(*store, "b", std::nullopt));
  const auto patient = Client();
  std::jthread waiting([&] { Must(Make(*patient, "c", kOther)); });
  node_.store().SetNameRoom(&room_);
  waiting.join();
  EXPECT_TRUE(Must(store->Get({}, "c")).has_value());
}

TEST_F(NodeWithRoom, KeepingALeaseTellsHowMuchThereIs) {
  const auto store = Client();
  const kv::LeaseId lease = Must(store->GrantLease({}, std::chrono::minutes(1)));
  Must(store->KeepLeaseAlive({}, lease));
  EXPECT_EQ(store->RoomForNames(), std::nullopt);
  node_.store().SetNameRoom(&room_);
  Must(store->KeepLeaseAlive({}, lease));
  EXPECT_EQ(store->RoomForNames(), 5u << 20);
}

}  // namespace
}  // namespace cairnfs::kvnet
