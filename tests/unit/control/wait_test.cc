// `cairnfs wait`: what the daemon says counts, and no daemon is not an answer.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "../fs/fixture.h"
#include "control/client.h"
#include "control/service.h"
#include "fs/names.h"
#include "kv/hosted_store.h"

namespace cairnfs::control {
namespace {

TEST(Wait, TheDaemonsErrorIsTheAnswer) {
  char folder[] = "/tmp/cairnfs-wait-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string socket = std::string(folder) + "/control.sock";
  EXPECT_FALSE(Client(socket).Wait(kRootInode, "/mnt").has_value()) << "nobody listens";

  fs::World world;
  auto engine = kv::OpenMemoryEngine();
  auto store = kv::HostedStore::Open(*engine);
  ASSERT_TRUE(store.ok());
  RankGate gate({**store, **store, [](const Context&) -> Result<kv::LeaseId> { return kv::LeaseId{0}; }, "host"});
  Service::Options options;
  options.socket_path = socket;
  options.gate = &gate;
  auto service = Service::Start(options, *world.fs);
  ASSERT_TRUE(service.ok()) << service.error().message;

  ASSERT_TRUE(world.fs->names().MakeNode({}, kRootInode, "made", fs::WithMode(S_IFDIR | 0755)).ok());
  world.engine->full = true;
  ASSERT_TRUE(world.names->Rename({}, {kRootInode, "made", kRootInode, "moved"}).ok());
  const auto refused = Client(socket).Wait(kRootInode, "/mnt");
  ASSERT_TRUE(refused.has_value());
  ASSERT_FALSE(refused->ok());
  EXPECT_EQ(refused->error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(refused->error().message.starts_with("cannot make /mnt durable")) << refused->error().message;
  world.engine->full = false;
  const auto done = Client(socket).Wait(kRootInode, "/mnt");
  ASSERT_TRUE(done.has_value());
  EXPECT_TRUE(done->ok()) << done->error().message;

  (*service)->Shutdown();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace cairnfs::control
