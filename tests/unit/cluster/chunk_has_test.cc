// Who asks which chunks there are is told the truth, or that it is not known.
#include <algorithm>

#include "chunk_fixture.h"

namespace cairnfs::cluster {
namespace {

class ChunkHasTest : public ClusterChunkTest {
 protected:
  void SetUp() override {
    ClusterChunkTest::SetUp();
    options_.copies = 1;
  }
  // Chunks that only node 2 has.
  std::vector<Digest> PutOnNode2() {
    std::vector<Digest> digests;
    for (const TestChunk& chunk : MakeChunks(1, 10)) {
      Plant(*nodes_[1], chunk, {});
      digests.push_back(chunk.digest);
    }
    return digests;
  }
  static size_t CountOf(const Result<std::vector<bool>>& has) {
    return static_cast<size_t>(std::count(has->begin(), has->end(), true));
  }
};

TEST_F(ChunkHasTest, TheOthersAreAsked) {
  AddNodes(3);
  auto digests = PutOnNode2();
  digests.push_back(MakeChunk(99, 5000).digest);
  for (auto& node : nodes_) {
    const auto has = node->chunks->Has({}, digests);
    ASSERT_OK(has);
    EXPECT_EQ(CountOf(has), 10U);
    EXPECT_FALSE(has->back());
  }
}

TEST_F(ChunkHasTest, ANodeThatDidNotAnswerIsAskedAgain) {
  AddNodes(2);
  const auto digests = PutOnNode2();
  Stop(*nodes_[1]);  // it is up still, as a node is that has just begun
  auto has = std::async(std::launch::async, [&] { return nodes_[0]->chunks->Has({}, digests); });
  EXPECT_FALSE(IsReadyWithin(has, std::chrono::milliseconds(300)));
  Start(*nodes_[1]);
  const auto answer = has.get();
  ASSERT_OK(answer);
  EXPECT_EQ(CountOf(answer), 10U);
}

TEST_F(ChunkHasTest, ANodeThatGoesDownHasNone) {
  AddNodes(2);
  const auto digests = PutOnNode2();
  Stop(*nodes_[1]);
  auto has = std::async(std::launch::async, [&] { return nodes_[0]->chunks->Has({}, digests); });
  cluster_.SetState(nodes_[1]->id, NodeState::kDown);
  const auto answer = has.get();
  ASSERT_OK(answer);
  EXPECT_EQ(CountOf(answer), 0U);
}

TEST_F(ChunkHasTest, OneThatNeverAnswersIsNamed) {
  options_.read_wait_max = std::chrono::milliseconds(10);
  AddNodes(2);
  const auto digests = PutOnNode2();
  Stop(*nodes_[1]);
  const auto has = nodes_[0]->chunks->Has({}, digests);
  ASSERT_FALSE(has.ok());
  EXPECT_EQ(has.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(has.error().message.find("node n2"), std::string::npos) << has.error().message;
}

TEST_F(ChunkHasTest, WhoAsksCanBeStopped) {
  AddNodes(2);
  const auto digests = PutOnNode2();
  Stop(*nodes_[1]);
  std::stop_source stop;
  auto has = std::async(std::launch::async, [&] { return nodes_[0]->chunks->Has(Context(stop.get_token()), digests); });
  stop.request_stop();
  const auto answer = has.get();
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, ErrorCode::kInterrupted);
}

}  // namespace
}  // namespace cairnfs::cluster
