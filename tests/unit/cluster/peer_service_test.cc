// What hosts ask each other beside chunks, and who may ask.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <future>

#include "../../support/eventually.h"
#include "base/clock.h"
#include "chunk_fixture.h"
#include "cluster/peer_client.h"
#include "cluster/peer_server.h"

namespace cairnfs::cluster {
namespace {

struct Handler {
  std::vector<bool> Answer(const std::vector<InodeId>& inodes) {
    ++running;
    while (blocked) Clock::SleepFor(std::chrono::milliseconds(1));
    --running;
    std::vector<bool> held;
    for (const InodeId& inode : inodes) held.push_back(inode.value > 10);
    return held;
  }
  std::atomic<bool> blocked{false};
  std::atomic<int> running{0};
};

class PeerServiceTest : public ClusterChunkTest {
 protected:
  void SetUp() override {
    ClusterChunkTest::SetUp();
    AddNodes(2);
    SetHandler();
  }
  void SetHandler() {
    nodes_[1]->service->peers().SetHandler([this](const auto& inodes) { return handler_.Answer(inodes); });
  }
  Peers& peers() { return nodes_[0]->service->peers(); }
  static Context Soon(std::chrono::milliseconds time = std::chrono::seconds(20)) { return Context().WithTimeout(time); }
  Handler handler_;
};

TEST_F(PeerServiceTest, HoldOrphans) {
  auto held = peers().HoldOrphans(Soon(), nodes_[1]->id, {InodeId{5}, InodeId{50}});
  ASSERT_OK(held);
  EXPECT_EQ(*held, (std::vector<bool>{false, true}));
}

TEST_F(PeerServiceTest, OpenFiles) {
  auto nobody = peers().OpenFiles(Soon(std::chrono::seconds(1)), nodes_[1]->id, OpenWhat::kPlaces);
  ASSERT_FALSE(nobody.ok());
  EXPECT_EQ(nobody.error().code, ErrorCode::kUnavailable) << "it runs no filesystem yet";
  // A call that nobody waits for any more may come late: what a handler answers does not change.
  const std::vector<InodeId> places = {InodeId{7}, InodeId{8}}, written = {InodeId{9}}, sealing = {InodeId{10}};
  nodes_[1]->service->peers().SetOpenHandler([&](OpenWhat what) -> Result<std::vector<InodeId>> {
    if (what == OpenWhat::kPlaces) return places;
    return what == OpenWhat::kWritten ? written : sealing;
  });
  auto told = peers().OpenFiles(Soon(), nodes_[1]->id, OpenWhat::kPlaces);
  ASSERT_OK(told);
  EXPECT_EQ(*told, places);
  told = peers().OpenFiles(Soon(), nodes_[1]->id, OpenWhat::kWritten);
  ASSERT_OK(told);
  EXPECT_EQ(*told, written);
  told = peers().OpenFiles(Soon(), nodes_[1]->id, OpenWhat::kWrittenForSeal);
  ASSERT_OK(told);
  EXPECT_EQ(*told, sealing);
  nodes_[1]->service->peers().SetOpenHandler([](OpenWhat) { return std::vector<InodeId>((1 << 19) + 1, InodeId{9}); });
  told = peers().OpenFiles(Soon(), nodes_[1]->id, OpenWhat::kPlaces);
  ASSERT_FALSE(told.ok()) << "part of them is no answer";
  EXPECT_EQ(told.error().code, ErrorCode::kTooLarge);
  nodes_[1]->service->peers().SetOpenHandler({});
}

TEST_F(PeerServiceTest, ErrorsAreToldApart) {
  NodeId stranger;
  stranger.bytes.fill(std::byte{0xee});
  auto unknown = peers().HoldOrphans(Soon(), stranger, {InodeId{1}});
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
  auto nobody = nodes_[1]->service->peers().HoldOrphans(Soon(std::chrono::seconds(1)), nodes_[0]->id, {InodeId{1}});
  ASSERT_FALSE(nobody.ok());
  EXPECT_EQ(nobody.error().code, ErrorCode::kUnavailable);
  handler_.blocked = true;
  auto late = peers().HoldOrphans(Soon(std::chrono::milliseconds(300)), nodes_[1]->id, {InodeId{1}});
  handler_.blocked = false;
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, ErrorCode::kUnavailable);
}

TEST_F(PeerServiceTest, AnotherNodeAtTheAddressIsNotFound) {
  // Node 1's address leads to node 2 now.
  cluster_.Edit(nodes_[0]->id, [&](NodeInfo& node) { node.address = nodes_[1]->service->address(); });
  auto held = nodes_[1]->service->peers().HoldOrphans(Soon(), nodes_[0]->id, {InodeId{1}});
  ASSERT_FALSE(held.ok());
  EXPECT_EQ(held.error().code, ErrorCode::kNotFound);
}

TEST_F(PeerServiceTest, ANodeThatIsOutIsNotAnswered) {
  cluster_.SetState(nodes_[0]->id, NodeState::kOut);
  auto held = peers().HoldOrphans(Soon(std::chrono::seconds(1)), nodes_[1]->id, {InodeId{1}});
  ASSERT_FALSE(held.ok());
  EXPECT_EQ(held.error().code, ErrorCode::kUnavailable);
}

TEST_F(PeerServiceTest, ABlockedHandlerDoesNotHoldUpChunks) {
  handler_.blocked = true;
  std::vector<std::thread> askers;
  for (int i = 0; i < 2; ++i) {
    askers.emplace_back(
        [&] { EXPECT_TRUE(peers().HoldOrphans(Soon(std::chrono::minutes(2)), nodes_[1]->id, {InodeId{2}}).ok()); });
  }
  EXPECT_TRUE(Eventually([&] { return handler_.running == 2; }));
  const auto chunks = MakeChunks(1, 10);
  PutAll(*nodes_[0], chunks);
  EXPECT_TRUE(nodes_[0]->chunks->Sync().ok());
  handler_.blocked = false;
  for (std::thread& asker : askers) asker.join();
}

TEST_F(PeerServiceTest, WhoWaitsNoMoreDoesNotWaitForAnAnswerEither) {
  handler_.blocked = true;
  std::stop_source stop;
  const Context context = Soon(std::chrono::minutes(10)).WithStop(stop.get_token());
  auto asked =
      std::async(std::launch::async, [&] { return peers().HoldOrphans(context, nodes_[1]->id, {InodeId{2}}); });
  EXPECT_TRUE(Eventually([&] { return handler_.running == 1; }));
  stop.request_stop();
  EXPECT_TRUE(IsReadyWithin(asked, std::chrono::seconds(60)));
  handler_.blocked = false;
  const auto answer = asked.get();
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, ErrorCode::kInterrupted);
}

TEST_F(PeerServiceTest, TakingTheHandlerAwayWaitsForItsCalls) {
  handler_.blocked = true;
  std::thread asker([&] { static_cast<void>(peers().HoldOrphans(Soon(), nodes_[1]->id, {InodeId{2}})); });
  EXPECT_TRUE(Eventually([&] { return handler_.running == 1; }));
  std::thread unblocker([&] {
    Clock::SleepFor(std::chrono::milliseconds(50));
    handler_.blocked = false;
  });
  nodes_[1]->service->peers().SetHandler({});
  EXPECT_EQ(handler_.running, 0);
  unblocker.join();
  asker.join();
}

TEST_F(PeerServiceTest, AnAddressThatIsTakenIsRefused) {
  PeerService::Options options;
  options.listen = nodes_[0]->service->address();
  auto service = PeerService::Start(options, *nodes_[1]->chunks, *nodes_[1]->membership);
  ASSERT_FALSE(service.ok());
  EXPECT_EQ(service.error().code, ErrorCode::kUnavailable);  // no wrong configuration: a service manager tries again
  EXPECT_NE(service.error().message.find(options.listen), std::string::npos);
}

TEST_F(PeerServiceTest, ANodeThatComesBackIsFoundAgainSoon) {
  Down(*nodes_[1]);
  auto away = peers().HoldOrphans(Soon(std::chrono::milliseconds(300)), nodes_[1]->id, {InodeId{5}});
  EXPECT_FALSE(away.ok());
  Start(*nodes_[1]);
  SetHandler();
  const auto begin = Clock::Now();
  ASSERT_OK(peers().HoldOrphans(Soon(), nodes_[1]->id, {InodeId{5}}));
  EXPECT_LT(Clock::Now() - begin, std::chrono::seconds(15));
}

TEST_F(PeerServiceTest, NewsIsDurableWhenItIsAnswered) {
  WireCounters counters;
  PeerClient client(*nodes_[0]->membership, 1, counters, options_.timeouts.connect);
  const TestChunk chunk = MakeChunk(1, 1000);
  const Holders holders = {nodes_[0]->id, nodes_[1]->id};
  std::promise<bool> answered;
  client.Call(nodes_[1]->id, PeerMethod::kPut, {EncodePut({{chunk.digest, 0, holders}}), {}}, std::chrono::seconds(10),
              [&](const Result<PeerMessage>& reply) { answered.set_value(reply.ok()); });
  EXPECT_TRUE(answered.get_future().get());
  EXPECT_EQ(ListOf(*nodes_[1], chunk), holders);
}

// Node 2's answers come from the test.
class PeerServerTest : public ClusterChunkTest {
 protected:
  void SetUp() override {
    ClusterChunkTest::SetUp();
    AddNodes(2);
  }
  void TearDown() override {
    Release();
    server_.reset();
    client_.reset();
    ClusterChunkTest::TearDown();
  }
  void Listen(PeerServer::Options options, PeerMethod held) {
    options.listen = "127.0.0.1:0";
    auto server =
        PeerServer::Start(options, *nodes_[1]->membership, counters_,
                          [this, held](PeerMethod method, const NodeId&, PeerMessage, PeerServer::Respond respond) {
                            if (method != held) return respond(PeerMessage{});
                            ++begun_;
                            MutexLock lock(mutex_);
                            held_.push_back(std::move(respond));
                          });
    ASSERT_OK(server);
    server_ = std::move(server).value();
    cluster_.Edit(nodes_[1]->id, [&](NodeInfo& node) { node.address = server_->address(); });
    client_ = std::make_unique<PeerClient>(*nodes_[0]->membership, 1, counters_, options_.timeouts.connect);
  }
  std::future<ErrorCode> Call(PeerMethod method, size_t payload_bytes,
                              std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    auto promise = std::make_shared<std::promise<ErrorCode>>();
    PeerMessage message;
    if (payload_bytes > 0)
      message.payload.push_back({{}, reinterpret_cast<const std::byte*>(bytes_.data()), payload_bytes});
    client_->Call(nodes_[1]->id, method, std::move(message), timeout, [promise](const Result<PeerMessage>& reply) {
      promise->set_value(reply.ok() ? ErrorCode::kAlreadyExists : reply.error().code);
    });
    return promise->get_future();
  }
  static constexpr ErrorCode kAnswered = ErrorCode::kAlreadyExists;
  void Release() {
    std::vector<PeerServer::Respond> held;
    {
      MutexLock lock(mutex_);
      held.swap(held_);
    }
    for (auto& respond : held) respond(PeerMessage{});
  }

  const std::string bytes_ = std::string(kMiB, 'b');
  WireCounters counters_;
  std::atomic<int> begun_{0};
  Mutex mutex_;
  std::vector<PeerServer::Respond> held_ GUARDED_BY(mutex_);
  std::unique_ptr<PeerServer> server_;
  std::unique_ptr<PeerClient> client_;
};

TEST_F(PeerServerTest, ANodeThatCannotTakeMoreChunksAnswersQuestions) {
  PeerServer::Options options;
  options.put_bytes_max = kMiB;
  Listen(options, PeerMethod::kPut);
  auto first = Call(PeerMethod::kPut, 700'000);
  ASSERT_TRUE(Eventually([&] { return begun_ == 1; }));
  EXPECT_EQ(Call(PeerMethod::kPut, 700'000).get(), ErrorCode::kBusy);
  for (PeerMethod method : {PeerMethod::kHas, PeerMethod::kConfirm, PeerMethod::kGet}) {
    EXPECT_EQ(Call(method, 0).get(), kAnswered);
  }
  Release();
  EXPECT_EQ(first.get(), kAnswered);
}

TEST_F(PeerServerTest, GetsWaitForThoseWhoseRepliesTakeMemory) {
  PeerServer::Options options;
  options.gets_at_once_max = 2;
  Listen(options, PeerMethod::kGet);
  std::vector<std::future<ErrorCode>> calls;
  for (int i = 0; i < 5; ++i) calls.push_back(Call(PeerMethod::kGet, 0));
  ASSERT_TRUE(Eventually([&] { return begun_ == 2; }));
  EXPECT_EQ(Call(PeerMethod::kHas, 0).get(), kAnswered);  // which came after them
  EXPECT_EQ(begun_, 2);
  EXPECT_TRUE(Eventually([&] {
    Release();
    return begun_ == 5;
  }));
  Release();
  for (auto& call : calls) EXPECT_EQ(call.get(), kAnswered);
}

// As `cairnfs cluster join` does that was given the wrong address of a host.
TEST_F(PeerServerTest, WhoAsksForTheMetadataIsToldWhereItIs) {
  PeerServer::Options options;
  options.metadata = "node:10.0.0.1:7402";
  Listen(options, PeerMethod::kPut);
  grpc::GenericStub stub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const grpc::Slice nothing("x");
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer reply;
  std::promise<grpc::Status> answered;
  stub.UnaryCall(&context, "/cairnfs.kv.Kv/Read", grpc::StubOptions(), &request, &reply,
                 [&](grpc::Status status) { answered.set_value(std::move(status)); });
  const grpc::Status status = answered.get_future().get();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_NE(status.error_message().find("the metadata is at node:10.0.0.1:7402"), std::string::npos)
      << status.error_message();
}

TEST_F(PeerServiceTest, MalformedRequestsAreRefused) {
  WireCounters counters;
  PeerClient client(*nodes_[0]->membership, 1, counters, options_.timeouts.connect);
  for (PeerMethod method :
       {PeerMethod::kHas, PeerMethod::kConfirm, PeerMethod::kPut, PeerMethod::kGet, PeerMethod::kHoldOrphans}) {
    std::promise<ErrorCode> promise;
    client.Call(nodes_[1]->id, method, {"\xff\xff\xff\xff nonsense", {}}, std::chrono::seconds(10),
                [&](const Result<PeerMessage>& reply) {
                  promise.set_value(reply.ok() ? ErrorCode::kFailed : reply.error().code);
                });
    EXPECT_EQ(promise.get_future().get(), ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace cairnfs::cluster
