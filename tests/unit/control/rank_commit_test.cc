// Ranks of another user commit through the daemon's service, as far as they may rename.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "../fs/fixture.h"
#include "control/client.h"
#include "control/service.h"
#include "fs/attributes.h"
#include "fs/names.h"
#include "kv/hosted_store.h"
#include "rank_process.h"

namespace cairnfs::control {
namespace {

constexpr uid_t kNobody = 65534;

TEST(RankCommit, IsForThoseWhoMayRename) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  char folder[] = "/tmp/cairnfs ranks,a#b%41-XXXXXX";  // with all that gRPC would not take for a path
  ASSERT_NE(mkdtemp(folder), nullptr);
  ASSERT_EQ(chmod(folder, 0711), 0);
  const std::string socket = std::string(folder) + "/control.sock";
  {
    Rank rank(socket, kNobody);
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

    auto make = [&](const char* name, uint32_t uid) {
      meta::CreateParams params = fs::WithMode(S_IFDIR | 0755);
      params.uid = params.gid = uid;
      auto made = world.fs->names().MakeNode({}, kRootInode, name, params);
      EXPECT_TRUE(made.ok());
      return made.ok() ? made->inode : InodeId{};
    };
    const InodeId mine = make("mine", kNobody);
    EXPECT_NE(rank.Commit(mine).find("Permission denied"), std::string::npos) << "the directory above is root's";
    fs::SetAttrRequest open_to_all;
    open_to_all.mode = 01777;
    auto changed = fs::World::Await<meta::Attr>(
        [&](fs::Done<meta::Attr> done) { world.fs->attributes().SetAttr(kRootInode, open_to_all, std::move(done)); });
    ASSERT_TRUE(changed.ok());
    EXPECT_EQ(rank.Commit(mine), "");
    EXPECT_NE(rank.Commit(make("roots", 0)).find("Permission denied"), std::string::npos) << "sticky";
    Client own(socket);
    EXPECT_TRUE(own.Commit(CallOfTheOnlyRank(make("own", 0)), [] { return Status(); }).ok());
    EXPECT_TRUE(own.GetStatus().ok());
  }
  EXPECT_FALSE(std::filesystem::exists(std::string(folder) + "/ranks.sock"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace cairnfs::control
