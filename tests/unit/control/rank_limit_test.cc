// Ranks that commit at once hold a thread each: one too many hears what the limit is.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <future>

#include "../fs/fixture.h"
#include "control/client.h"
#include "control/service.h"
#include "kv/hosted_store.h"
#include "only_rank.h"

namespace cairnfs::control {
namespace {

TEST(RankLimit, OneTooManyIsToldOfIt) {
  char folder[] = "/tmp/cairnfs-limit-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string socket = std::string(folder) + "/control.sock";
  fs::World world;
  fs::SetAttrRequest open_to_all;
  open_to_all.mode = 0777;
  auto set = fs::World::Await<meta::Attr>(
      [&](fs::Done<meta::Attr> done) { world.fs->SetAttr(kRootInode, open_to_all, std::move(done)); });
  ASSERT_TRUE(set.ok());
  auto made = world.fs->MakeNode(kRootInode, "tmp", fs::WithMode(S_IFDIR | 0755));
  ASSERT_TRUE(made.ok());
  auto engine = kv::OpenMemoryEngine();
  auto store = kv::HostedStore::Open(*engine);
  ASSERT_TRUE(store.ok());
  RankGate gate({**store, **store, []() -> Result<kv::LeaseId> { return kv::LeaseId{0}; }, "host"});

  const auto commit = [&](unsigned rank) {
    GateCall call = CallOfTheOnlyRank(made->inode);
    call.ranks = 2;
    call.rank = rank;
    call.timeout = std::chrono::minutes(10);
    return Client(socket).Commit(call, [] { return Status(); });
  };
  std::future<Status> waits;  // until the service ends
  Service::Options options;
  options.socket_path = socket;
  options.gate = &gate;
  options.ranks_max = 1;
  auto service = Service::Start(options, *world.fs);
  ASSERT_TRUE(service.ok()) << service.error().message;
  waits = std::async(std::launch::async, [&] { return commit(0); });
  ASSERT_TRUE(Eventually([&] { return !(*store)->Range("B", "C", 0)->entries.empty(); }));
  Status refused = commit(1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kBusy) << refused.error().message;
  EXPECT_NE(refused.error().message.find("no more than 1 ranks of a host"), std::string::npos);
  (*service)->Shutdown();
  EXPECT_FALSE(waits.get().ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace cairnfs::control
