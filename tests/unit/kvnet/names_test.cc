// Three hosts with the names over gRPC: calls find the one that serves them, and watches go on at the next one.
#include "kvnet/names_service.h"
#include "support.h"

namespace cairnfs::kvnet {
namespace {

constexpr size_t kHosts = 3;

class Hosts {
 public:
  Hosts() {
    std::vector<int> held;  // all at once, so that no port is given twice
    for (size_t i = 0; i < kHosts; ++i) {
      int port = 0;
      held.push_back(Listen(port));
      members.push_back({"node" + std::to_string(i), OwnAddress() + ":" + std::to_string(port)});
      engines.push_back(kv::OpenMemoryEngine());
    }
    for (int fd : held) close(fd);
    Must(kv::HostedStore::Open(*engines[0]));
    for (size_t i = 0; i < kHosts; ++i) Start(i);
  }
  ~Hosts() {
    for (size_t i = 0; i < kHosts; ++i) Kill(i);
  }
  void Start(size_t i) {
    kv::NamesHost::Options options;
    options.self = members[i];
    options.has_names_at_first = i == 0;
    options.reach = [](const kv::Member& member) {
      const auto names = RemoteNames::To(member, {});
      return kv::NamesHost::Options::Remote{names, names};
    };
    hosts[i] = Must(kv::NamesHost::Open(*engines[i], std::move(options)));
    servers[i] = Must(KvServer::Start(*hosts[i], members[i].address, {}));
  }
  void Kill(size_t i) {
    if (hosts[i]) hosts[i]->Stop();
    servers[i].reset();
    hosts[i].reset();
  }
  std::vector<std::string> Addresses() const {
    std::vector<std::string> addresses;
    for (const kv::Member& member : members) addresses.push_back(member.address);
    return addresses;
  }

  std::vector<kv::Member> members;
  std::vector<std::unique_ptr<kv::KvEngine>> engines;
  std::array<std::unique_ptr<kv::NamesHost>, kHosts> hosts;
  std::array<std::unique_ptr<KvServer>, kHosts> servers;
};

TEST(Names, CallsAndWatchesGoToTheOneThatWasPromoted) {
  Hosts hosts;
  const auto store = Must(MakeNodeStore(hosts.Addresses(), {}));
  std::atomic<int> changes{0}, losses{0};
  kv::WatchCallbacks callbacks;
  callbacks.changed = [&](const auto& events, auto) { changes += static_cast<int>(events.size()); };
  callbacks.lost = [&](auto) { ++losses; };
  const auto watch = Must(store->Watch({}, "", "", Must(store->Range({}, "", "", 0)).revision, callbacks));
  Must(store->Commit({}, Transaction().Put("a", "1")));
  // On a busy machine a vote may not come within its second.
  ASSERT_TRUE(Eventually([&] { return hosts.hosts[0]->SetStandby({}, hosts.members[1], hosts.members[2]).ok(); }));
  ASSERT_TRUE(Eventually([&] { return hosts.hosts[0]->voter().vote().value->state == kv::Register::Standby::kWhole; }));
  const kv::LeaseId lease = Must(store->GrantLease({}, std::chrono::seconds(60)));
  Must(store->Commit({}, Transaction().Put("b", std::string(5 << 20, 'b'))));
  const auto description = Must(DescribeNames({}, hosts.members[0].address, {}, std::chrono::seconds(60)));
  EXPECT_TRUE(description.is_serving);
  EXPECT_EQ(description.position, description.follower);
  EXPECT_EQ(description.self, hosts.members[0]);
  hosts.Kill(0);
  EXPECT_TRUE(Must(hosts.hosts[1]->Promote({}, false)).was_whole);
  EXPECT_EQ(Must(store->Get({}, "b"))->value.size(), 5U << 20);
  EXPECT_TRUE(Eventually([&] { return store->KeepLeaseAlive({}, lease).ok(); }));
  Must(store->Commit({}, Transaction().Put("c", "3")));
  EXPECT_TRUE(Eventually([&] { return changes + losses >= 3; })) << "it is told of the last change, or to look";
  // The old one is back: nothing is asked there.
  hosts.Start(0);
  EXPECT_EQ(Must(store->Get({}, "c"))->value, "3");
  EXPECT_FALSE(Must(DescribeNames({}, hosts.members[0].address, {}, std::chrono::seconds(60))).is_serving);
}

TEST(Names, ACallForAnotherNodeIsRefused) {
  Hosts hosts;
  const auto wrong = RemoteNames::To({"node7", hosts.members[1].address}, {});
  const auto prepared = wrong->Prepare({}, {5, "node0"});
  ASSERT_FALSE(prepared.ok());
  EXPECT_EQ(prepared.error().code, ErrorCode::kNotFound) << prepared.error().message;
  EXPECT_EQ(hosts.hosts[1]->voter().vote().promised, kv::Ballot());
  const auto right = RemoteNames::To(hosts.members[1], {});
  EXPECT_TRUE(Must(right->Prepare({}, {5, "node0"})).is_granted);
  // What is of no names, and a register that cannot be.
  EXPECT_EQ(right->Append({}, {5, "node0"}, {{{}, {1, 1}, {{"V", "x"}}}}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairnfs::kvnet
