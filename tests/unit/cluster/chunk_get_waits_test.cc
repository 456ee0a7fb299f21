// Reading in a cluster while nodes that have the chunk are away, or do not answer.
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <utility>

#include "../../support/eventually.h"
#include "../../support/sanitizers.h"
#include "base/clock.h"
#include "chunk_fixture.h"
#include "cluster/peer_message.h"
#include "cluster/peer_server.h"

namespace cairnfs::cluster {
namespace {

// --- reads that wait ---------------------------------------------------------------------------------------------

using Data = Result<store::ChunkData>;

class WaitingReadTest : public ClusterChunkTest {
 protected:
  // Half of it is enough for what does not wait.
  static constexpr std::chrono::seconds kWaitMax{kThreadSanitizer || kAddressSanitizer ? 20 : 5};

  // Node 2 alone has the chunks; node 1 is to read them.
  std::vector<TestChunk> PlantOnNode2(size_t count) {
    options_.copies = 1;
    AddNodes(3);
    std::vector<TestChunk> chunks = MakeChunks(1, count);
    for (const TestChunk& chunk : chunks) Plant(*nodes_[1], chunk, {nodes_[1]->id});
    return chunks;
  }
  static std::future<Data> ReadAsUser(TestNode& node, const TestChunk& chunk) {
    auto promise = std::make_shared<std::promise<Data>>();
    node.chunks->GetForReader(chunk.digest, [promise](Data data) { promise->set_value(std::move(data)); });
    return promise->get_future();
  }
  static void ExpectBytes(std::future<Data>& read, const TestChunk& chunk) {
    ASSERT_TRUE(IsReadyWithin(read, std::chrono::seconds(60)));
    const Data data = read.get();
    ASSERT_OK(data);
    std::string text;
    for (const io::Slice& slice : data->slices) text += AsText(slice.bytes());
    EXPECT_TRUE(text == chunk.bytes);
  }
  static void ExpectFails(std::future<Data>& read, ErrorCode code, std::chrono::milliseconds within) {
    ASSERT_TRUE(IsReadyWithin(read, within));
    const Data data = read.get();
    ASSERT_FALSE(data.ok());
    EXPECT_EQ(data.error().code, code) << data.error().message;
  }
};

TEST_F(WaitingReadTest, AReadLastsUntilAHolderHasComeBack) {
  const auto chunks = PlantOnNode2(20);
  Down(*nodes_[1]);
  std::vector<std::future<Data>> reads;
  for (const TestChunk& chunk : chunks) reads.push_back(ReadAsUser(*nodes_[0], chunk));
  EXPECT_FALSE(IsReadyWithin(reads[0], std::chrono::milliseconds(300)));
  Start(*nodes_[1]);
  for (size_t i = 0; i < chunks.size(); ++i) ExpectBytes(reads[i], chunks[i]);
}

TEST_F(WaitingReadTest, AReadLastsUntilANodeThatKeptItsSessionAnswersAgain) {
  const auto chunks = PlantOnNode2(1);
  PeerService::Options options;
  options.listen = nodes_[1]->service->address();
  nodes_[1]->service.reset();
  auto read = ReadAsUser(*nodes_[0], chunks[0]);
  EXPECT_FALSE(IsReadyWithin(read, std::chrono::milliseconds(300)));
  auto service = PeerService::Start(options, *nodes_[1]->chunks, *nodes_[1]->membership);
  ASSERT_OK(service);
  nodes_[1]->service = std::move(service).value();
  ExpectBytes(read, chunks[0]);
}

TEST_F(WaitingReadTest, OnlyReadersWait) {
  const auto chunks = PlantOnNode2(1);
  Down(*nodes_[1]);
  auto read = ReadAsUser(*nodes_[0], chunks[0]);
  nodes_[0]->chunks->Prefetch({&chunks[0].digest, 1});
  const auto begin = Clock::Now();
  auto text = store::GetText(*nodes_[0]->chunks, chunks[0].digest);
  EXPECT_LT(Clock::Now() - begin, kReadWaitMax / 2);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(IsReadyWithin(read, std::chrono::milliseconds(100)));
}

TEST_F(WaitingReadTest, WhoStaysAwayIsWaitedForOnce) {
  options_.read_wait_max = kWaitMax;
  const auto chunks = PlantOnNode2(4);
  Down(*nodes_[1]);
  auto begin = Clock::Now();
  auto data = ReadAsUser(*nodes_[0], chunks[0]).get();
  EXPECT_GE(Clock::Now() - begin, kWaitMax);
  ASSERT_FALSE(data.ok());
  EXPECT_EQ(data.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(data.error().message.find("n2"), std::string::npos) << data.error().message;
  for (size_t i : {1, 2}) {
    auto next = ReadAsUser(*nodes_[0], chunks[i]);
    ExpectFails(next, ErrorCode::kUnavailable, kWaitMax / 2);
  }
  // It was back: it is waited for again.
  Start(*nodes_[1]);
  Down(*nodes_[1]);
  begin = Clock::Now();
  EXPECT_FALSE(ReadAsUser(*nodes_[0], chunks[3]).get().ok());
  EXPECT_GE(Clock::Now() - begin, kWaitMax);
}

TEST_F(WaitingReadTest, NobodyWaitsForANodeThatIsOut) {
  const auto chunks = PlantOnNode2(2);
  Down(*nodes_[1]);
  auto early = ReadAsUser(*nodes_[0], chunks[0]);
  EXPECT_FALSE(IsReadyWithin(early, std::chrono::milliseconds(100)));
  cluster_.SetState(nodes_[1]->id, NodeState::kOut);
  ExpectFails(early, ErrorCode::kUnavailable, kReadWaitMax / 2);
  auto late = ReadAsUser(*nodes_[0], chunks[1]);
  ExpectFails(late, ErrorCode::kUnavailable, kReadWaitMax / 2);
}

TEST_F(WaitingReadTest, WhatIsNowhereOrDamagedIsNotWaitedFor) {
  const auto chunks = PlantOnNode2(1);
  auto unknown = ReadAsUser(*nodes_[0], MakeChunk(77, 1000));
  ExpectFails(unknown, ErrorCode::kNotFound, kReadWaitMax / 2);
  Damage(*nodes_[1], chunks[0]);
  auto damaged = ReadAsUser(*nodes_[0], chunks[0]);
  ExpectFails(damaged, ErrorCode::kCorrupt, kReadWaitMax / 2);
}

TEST_F(WaitingReadTest, ADamagedOwnCopyWaitsForTheOther) {
  const auto chunks = PlantOnNode2(1);
  Plant(*nodes_[0], chunks[0], {nodes_[0]->id, nodes_[1]->id});
  Damage(*nodes_[0], chunks[0]);
  Down(*nodes_[1]);
  auto read = ReadAsUser(*nodes_[0], chunks[0]);
  EXPECT_FALSE(IsReadyWithin(read, std::chrono::milliseconds(200)));
  Start(*nodes_[1]);
  ExpectBytes(read, chunks[0]);
}

TEST_F(WaitingReadTest, AStopEndsWhatWaits) {
  const auto chunks = PlantOnNode2(20);
  Down(*nodes_[1]);
  std::vector<std::future<Data>> reads;
  for (const TestChunk& chunk : chunks) reads.push_back(ReadAsUser(*nodes_[0], chunk));
  EXPECT_FALSE(IsReadyWithin(reads[0], std::chrono::milliseconds(200)));
  nodes_[0]->chunks->EndWaits();
  for (auto& read : reads) ExpectFails(read, ErrorCode::kUnavailable, kReadWaitMax / 2);
  auto late = ReadAsUser(*nodes_[0], chunks[0]);
  ExpectFails(late, ErrorCode::kUnavailable, kReadWaitMax / 2);
  // Also without that call.
  auto other = ReadAsUser(*nodes_[2], chunks[0]);
  EXPECT_FALSE(IsReadyWithin(other, std::chrono::milliseconds(200)));
  const auto begin = Clock::Now();
  Stop(*nodes_[2]);
  EXPECT_LT(Clock::Now() - begin, kReadWaitMax / 2);
  ExpectFails(other, ErrorCode::kUnavailable, std::chrono::milliseconds(0));
}

TEST_F(WaitingReadTest, AReadThatJoinsAPrefetchWaitsAllTheSame) {
  const auto chunks = PlantOnNode2(1);
  // In the place of node 2 is one that answers when it is told to.
  std::promise<PeerServer::Respond> asked;
  std::atomic<bool> is_first{true};
  const Error busy = MakeError(ErrorCode::kBusy, "later");
  WireCounters counters;
  PeerServer::Options options;
  options.listen = "127.0.0.1:0";
  auto server =
      PeerServer::Start(options, *nodes_[1]->membership, counters,
                        [&](PeerMethod method, const NodeId&, const PeerMessage&, PeerServer::Respond respond) {
                          if (method != PeerMethod::kGet || !is_first.exchange(false)) return respond(busy);
                          asked.set_value(std::move(respond));
                        });
  ASSERT_OK(server);
  cluster_.Edit(nodes_[1]->id, [&](NodeInfo& node) { node.address = (*server)->address(); });
  nodes_[0]->chunks->Prefetch({&chunks[0].digest, 1});
  const PeerServer::Respond respond = asked.get_future().get();
  auto read = ReadAsUser(*nodes_[0], chunks[0]);
  respond(busy);
  EXPECT_FALSE(IsReadyWithin(read, std::chrono::milliseconds(300)));
  cluster_.Edit(nodes_[1]->id, [&](NodeInfo& node) { node.address = nodes_[1]->service->address(); });
  ExpectBytes(read, chunks[0]);
  nodes_[0]->service.reset();
  Stop(*nodes_[0]);  // its connections
}

// --- a node that answers nothing ---------------------------------------------------------------------------------

// Node 2 takes what it is asked, as a process that was stopped does, and answers it later. Node 1 reads.
class SilentNodeTest : public ClusterChunkTest {
 protected:
  void SetUp() override {
    ClusterChunkTest::SetUp();
    options_.timeouts.silent = std::chrono::milliseconds(300);
    AddNodes(3);
    PeerServer::Options options;
    options.listen = "127.0.0.1:0";
    auto server = PeerServer::Start(options, *nodes_[1]->membership, counters_,
                                    [this](PeerMethod method, const NodeId&, const PeerMessage& request,
                                           const PeerServer::Respond& respond) { Take(method, request, respond); });
    ASSERT_OK(server);
    server_ = std::move(*server);
    cluster_.Edit(nodes_[1]->id, [&](NodeInfo& node) { node.address = server_->address(); });
  }
  void TearDown() override {
    AnswerAll();
    nodes_[0]->service.reset();
    Stop(*nodes_[0]);  // its connections
    server_.reset();
    ClusterChunkTest::TearDown();
  }
  struct Request {
    std::vector<Digest> digests;
    PeerServer::Respond respond;
  };
  void Take(PeerMethod method, const PeerMessage& request, const PeerServer::Respond& respond) {
    auto digests = DecodeDigests(request.head);
    if (method != PeerMethod::kGet || !digests) return respond(MakeError(ErrorCode::kInvalidArgument, "only Get"));
    std::unique_lock lock(mutex_);
    asked_ += digests->size();
    held_.push_back({*std::move(digests), respond});
    if (!is_silent_) AnswerHeld(lock);
  }
  void AnswerAll() {
    std::unique_lock lock(mutex_);
    is_silent_ = false;
    AnswerHeld(lock);
  }
  void AnswerHeld(std::unique_lock<std::mutex>& lock) {
    std::vector<Request> held = std::exchange(held_, {});
    const std::map<Digest, std::string> has = has_;
    lock.unlock();
    for (const Request& request : held) {
      std::vector<GetAnswer> answers(request.digests.size());
      PeerMessage reply;
      for (size_t i = 0; i < answers.size(); i++) {
        const auto found = has.find(request.digests[i]);
        answers[i].kind = found != has.end() ? GetAnswer::Kind::kBytes : GetAnswer::Kind::kNotHere;
        if (found == has.end()) continue;
        std::shared_ptr<std::byte[]> bytes(new std::byte[found->second.size()]);
        std::memcpy(bytes.get(), found->second.data(), found->second.size());
        answers[i].size = static_cast<uint32_t>(found->second.size());
        reply.payload.push_back({{}, bytes.get(), found->second.size(), bytes});
      }
      reply.head = EncodeGetReply(answers);
      request.respond(std::move(reply));
    }
  }
  size_t asked() {
    std::lock_guard lock(mutex_);
    return asked_;
  }
  TestChunk MakeChunkOfNode2() {
    do ++seed_;
    while (&HomeOf(MakeChunk(seed_, 100'000)) != nodes_[1].get());
    return MakeChunk(seed_, 100'000);
  }
  bool CallsWait() { return nodes_[0]->chunks->peer().client().SilentSince(nodes_[1]->id).has_value(); }

  WireCounters counters_;
  std::unique_ptr<PeerServer> server_;
  uint64_t seed_ = 0;
  std::mutex mutex_;
  bool is_silent_ = true;
  size_t asked_ = 0;  // chunks
  std::vector<Request> held_;
  std::map<Digest, std::string> has_;
};

TEST_F(SilentNodeTest, ReadsGoToAnotherCopyUntilItAnswers) {
  const TestChunk chunk = MakeChunkOfNode2();
  Plant(*nodes_[2], chunk, {});
  ExpectReads(*nodes_[0], {chunk});
  EXPECT_EQ(asked(), 1U);
  EXPECT_TRUE(CallsWait()) << "the read was to wait until the call gave up";
  // While it is suspected nobody is sent to it.
  const TestChunk another = MakeChunkOfNode2();
  Plant(*nodes_[2], another, {});
  ExpectReads(*nodes_[0], {another});
  EXPECT_EQ(asked(), 1U);
  AnswerAll();
  EXPECT_TRUE(Eventually([&] {
    const TestChunk more = MakeChunkOfNode2();
    Plant(*nodes_[2], more, {});
    ExpectReads(*nodes_[0], {more});
    return asked() > 1;
  }));
}

TEST_F(SilentNodeTest, TheOnlyCopyIsWaitedForThoughItsNodeIsSlow) {
  const TestChunk chunk = MakeChunkOfNode2();
  {
    std::lock_guard lock(mutex_);
    has_[chunk.digest] = chunk.bytes;
  }
  auto read = std::async(std::launch::async, [&] { return store::GetText(*nodes_[0]->chunks, chunk.digest); });
  EXPECT_TRUE(Eventually([&] { return asked() == 2; })) << "nobody else has it, so it is asked once more";
  Clock::SleepFor(2 * options_.timeouts.silent);
  EXPECT_FALSE(IsReadyWithin(read, std::chrono::milliseconds(0)));
  AnswerAll();
  const auto text = read.get();
  ASSERT_OK(text);
  EXPECT_TRUE(*text == chunk.bytes);
}

}  // namespace
}  // namespace cairnfs::cluster
