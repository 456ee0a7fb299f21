// Ranks that commit at once hold a thread each: one too many of a user hears what the limit is, another user's is
// served.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <future>

#include "../fs/fixture.h"
#include "control/service.h"
#include "fs/attributes.h"
#include "fs/names.h"
#include "kv/hosted_store.h"
#include "rank_process.h"

namespace cairnfs::control {
namespace {

constexpr uid_t kNobody = 65534;

GateCall CallOfOneOfThree(InodeId directory, unsigned rank) {
  GateCall call = CallOfTheOnlyRank(directory);
  call.ranks = 3;
  call.rank = rank;
  call.timeout = std::chrono::minutes(10);
  return call;
}

TEST(RankLimit, OneUserLeavesPlacesToOthers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  char folder[] = "/tmp/cairnfs-limit-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  ASSERT_EQ(chmod(folder, 0711), 0);
  const std::string socket = std::string(folder) + "/control.sock";
  {
    Rank stranger(socket, kNobody);
    fs::World world;
    fs::SetAttrRequest open_to_all;
    open_to_all.mode = 0777;
    auto set = fs::World::Await<meta::Attr>(
        [&](fs::Done<meta::Attr> done) { world.fs->attributes().SetAttr(kRootInode, open_to_all, std::move(done)); });
    ASSERT_TRUE(set.ok());
    auto gathers = world.fs->names().MakeNode({}, kRootInode, "gathers", fs::WithMode(S_IFDIR | 0755));
    meta::CreateParams of_stranger = fs::WithMode(S_IFDIR | 0755);
    of_stranger.uid = of_stranger.gid = kNobody;
    auto ready = world.fs->names().MakeNode({}, kRootInode, "ready", of_stranger);
    ASSERT_TRUE(gathers.ok() && ready.ok());
    auto engine = kv::OpenMemoryEngine();
    auto store = kv::HostedStore::Open(*engine);
    ASSERT_TRUE(store.ok());
    RankGate gate({**store, **store, [](const Context&) -> Result<kv::LeaseId> { return kv::LeaseId{0}; }, "host"});
    const auto commit = [&](unsigned rank) {
      return Client(socket).Commit(CallOfOneOfThree(gathers->inode, rank), [] { return Status(); });
    };
    std::vector<std::future<Status>> waiting;  // until the service ends
    Service::Options options;
    options.socket_path = socket;
    options.gate = &gate;
    options.ranks_max = 3;
    auto service = Service::Start(options, *world.fs);
    ASSERT_TRUE(service.ok()) << service.error().message;
    for (unsigned rank : {0U, 1U}) waiting.push_back(std::async(std::launch::async, commit, rank));
    // The state of the gate, and two ranks.
    ASSERT_TRUE(Eventually([&] { return (*store)->Range({}, "B", "C", 0)->entries.size() == 3; }));
    Status refused = commit(2);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kBusy) << refused.error().message;
    EXPECT_NE(refused.error().message.find("no more than 2 ranks of a user"), std::string::npos);
    EXPECT_EQ(stranger.Commit(ready->inode), "");
    (*service)->Shutdown();
    for (auto& wait : waiting) EXPECT_FALSE(wait.get().ok());
  }
  std::filesystem::remove_all(folder);
}

class RankService : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/cairnfs-ranks-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    auto store = kv::HostedStore::Open(*engine_);
    ASSERT_TRUE(store.ok());
    store_ = *std::move(store);
    gate_ = std::make_unique<RankGate>(RankGate::Options{
        *store_, *store_, [](const Context&) -> Result<kv::LeaseId> { return kv::LeaseId{0}; }, "host"});
    options_.socket_path = folder_ + "/control.sock";
    options_.gate = gate_.get();
  }
  void TearDown() override {
    service_.reset();
    std::filesystem::remove_all(folder_);
  }
  void Start() {
    auto service = Service::Start(options_, *world_.fs);
    ASSERT_TRUE(service.ok()) << service.error().message;
    service_ = *std::move(service);
  }

  std::string folder_;
  fs::World world_;
  std::unique_ptr<kv::KvEngine> engine_ = kv::OpenMemoryEngine();
  std::unique_ptr<kv::HostedStore> store_;
  std::unique_ptr<RankGate> gate_;
  Service::Options options_;
  std::unique_ptr<Service> service_;
};

// Any user may send one, and what has come of it is in memory.
TEST_F(RankService, ARequestIsShort) {
  Start();
  for (size_t bytes : {size_t{1} << 10, size_t{1} << 20}) {
    GateCall call = CallOfTheOnlyRank(kRootInode);
    call.final_name = std::string(bytes, 'x');
    const Status status = Client(options_.socket_path).Commit(call, [] { return Status(); });
    ASSERT_FALSE(status.ok());
    const bool is_refused_unread = status.error().message.find("larger than max") != std::string::npos;
    EXPECT_EQ(is_refused_unread, bytes == size_t{1} << 20) << status.error().message;
  }
}

TEST_F(RankService, AConnectionWithoutACallIsClosed) {
  options_.rank_idle_max = std::chrono::milliseconds(50);
  Start();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (folder_ + "/ranks.sock").c_str(), sizeof address.sun_path - 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ssize_t got = 1;
  for (char bytes[256]; got > 0;) got = recv(fd, bytes, sizeof bytes, 0);  // what is sent first, and the end
  EXPECT_EQ(got, 0);
  close(fd);
}

}  // namespace
}  // namespace cairnfs::control
