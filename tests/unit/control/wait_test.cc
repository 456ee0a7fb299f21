// `cairnfs wait`: what the daemon says counts, and no daemon is not an answer.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "../fs/fixture.h"
#include "control/client.h"
#include "control/service.h"
#include "fs/names.h"
#include "kv/hosted_store.h"

namespace cairnfs::control {
namespace {

class Wait : public testing::Test {
 protected:
  Wait() {
    world.fs_options.flush_interval_ms = 3'600'000;  // rounds run when they are asked for
    world.Remake();
  }
  ~Wait() override {
    if (service) service->Shutdown();
    std::filesystem::remove_all(folder);
  }
  void Serve() {
    Service::Options options;
    options.socket_path = socket;
    options.gate = &gate;
    auto started = Service::Start(options, *world.fs);
    ASSERT_TRUE(started.ok()) << started.error().message;
    service = std::move(*started);
  }
  static std::string MakeFolder() {
    char name[] = "/tmp/cairnfs-wait-XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    return name;
  }

  const std::string folder = MakeFolder(), socket = folder + "/control.sock";
  fs::World world;
  std::unique_ptr<kv::KvEngine> engine = kv::OpenMemoryEngine();
  std::unique_ptr<kv::HostedStore> store = std::move(kv::HostedStore::Open(*engine).value());
  RankGate gate{{*store, *store, [](const Context&) -> Result<kv::LeaseId> { return kv::LeaseId{0}; }, "host"}};
  std::unique_ptr<Service> service;
};

TEST_F(Wait, TheDaemonsErrorIsTheAnswer) {
  EXPECT_FALSE(Client(socket).Wait(kRootInode, "/mnt").has_value()) << "nobody listens";
  Serve();
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
}

TEST_F(Wait, WhatIsLeftToWriteIsTold) {
  EXPECT_EQ(Client(socket).GetUnwritten().error().code, ErrorCode::kUnavailable) << "nobody listens";
  Serve();
  EXPECT_EQ(Client(socket).GetUnwritten()->bytes(), 0U);
  const fs::FileSystem::Created file = world.Create("file");
  ASSERT_TRUE(world.Write(file, 0, fs::RandomText(1, 100'000)).ok());
  EXPECT_EQ(Client(socket).GetUnwritten()->bytes(), 100'000U);
  world.CloseFile(file);  // of one that is open, room for its last chunk stays reserved
  const auto done = Client(socket).Wait(kRootInode, "/mnt");
  ASSERT_TRUE(done.has_value() && done->ok());
  EXPECT_EQ(Client(socket).GetUnwritten()->bytes(), 0U);
}

}  // namespace
}  // namespace cairnfs::control
