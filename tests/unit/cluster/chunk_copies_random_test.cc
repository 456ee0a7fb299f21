// The state machine of a chunk's copies, with events in any order.
#include <map>
#include <set>

#include "chunk_copies_fixture.h"

namespace cairnfs::cluster {
namespace {

// Nodes that lose all that they had when their session ends, and messages that take any time. However the events fall,
// a chunk is said to be replicated only while that many nodes have it, and it comes to its end once all is well.
class RandomOrder : public ChunkCopiesTest, public ::testing::WithParamInterface<int> {
 protected:
  struct Message {
    enum class Kind { kAsk, kConfirm, kSend, kStore, kLoad, kLoadToSend } kind;
    PeerSession peer;
    bool was_durable = false;  // of a kConfirm or kSend that was carried out
  };
  // What reaches a node is carried out in the moment in which it is sent.
  bool Reach(const NodeId& node) {
    if (Node(node).state != NodeState::kUp) return false;
    return !(random_() % 8 == 0);
  }
  void Send(const NodeId& node) {
    const bool is_stored = Reach(node);
    if (is_stored) has_it_.insert(node);
    messages_.push_back({Message::Kind::kSend, Of(node), is_stored});
  }
  void Do(ChunkCopies& chunk, const Actions& actions) {
    using MessageKind = Message::Kind;
    for (const auto& home : {actions.ask, actions.ask_again}) {
      if (home) messages_.push_back({MessageKind::kAsk, Of(*home)});
    }
    for (const NodeId& node : actions.confirm) {
      messages_.push_back({MessageKind::kConfirm, Of(node), Reach(node) && has_it_.contains(node)});
    }
    for (const NodeId& node : actions.send) {
      if (chunk.bytes().empty()) {
        messages_.push_back({MessageKind::kLoadToSend, Of(node)});
      } else {
        Send(node);
      }
    }
    if (actions.store) messages_.push_back({MessageKind::kStore, Of(self_)});
    if (actions.load) messages_.push_back({MessageKind::kLoad, Of(self_)});
    if (chunk.is_done() && chunk.end().outcome == Outcome::kReplicated) {
      EXPECT_GE(has_it_.size(), situation_.copies);
    }
  }
  void Deliver(ChunkCopies& chunk, const Message& message) {
    using MessageKind = Message::Kind;
    switch (message.kind) {
      case MessageKind::kAsk: return Do(chunk, Answer(chunk, message.peer));
      case MessageKind::kConfirm:
        return Do(chunk, chunk.OnConfirmed(situation_, message.peer,
                                           message.was_durable ? Confirmation::kHasIt : Confirmation::kNoAnswer));
      case MessageKind::kSend:
        return Do(chunk, chunk.OnSent(situation_, message.peer,
                                      message.was_durable ? SendResult::kDurable : SendResult::kNotStored));
      case MessageKind::kStore:
        if (chunk.is_done()) return;
        if (chunk.bytes().empty()) return Do(chunk, chunk.OnStored(situation_, StoreResult::kNoBytes));
        has_it_.insert(self_);
        return Do(chunk, chunk.OnStored(situation_, StoreResult::kStored));
      case MessageKind::kLoad:
      case MessageKind::kLoadToSend:
        if (has_it_.empty()) {
          return Do(chunk, chunk.OnLoadFailed(situation_, message.peer.node, MakeError(ErrorCode::kUnavailable, "")));
        }
        chunk.OnLoaded(SomeBytes());
        if (chunk.is_done()) return;
        if (message.kind == MessageKind::kLoadToSend) return Send(message.peer.node);
        messages_.push_back({MessageKind::kStore, Of(self_)});
        return;
    }
  }
  Actions Answer(ChunkCopies& chunk, const PeerSession& home) {
    if (!situation_.IsUp(home.node)) return chunk.OnHomeFailed(situation_);
    HasAnswer answer{Kind::kClaim, {}};
    for (const NodeId& node : has_it_) {
      if (random_() % 2 == 0) answer.holders.push_back(node);
    }
    if (!answer.holders.empty()) answer.kind = has_it_.contains(home.node) ? Kind::kKnownHere : Kind::kKnown;
    if (answer.holders.empty() && random_() % 4 == 0) answer.kind = Kind::kWait;
    return chunk.OnHomeAnswer(situation_, home, answer, has_it_.contains(self_));
  }
  void ChangeNode(ChunkCopies& chunk) {
    NodeInfo& node = nodes_[1 + random_() % (nodes_.size() - 1)];
    const bool was_up = node.state == NodeState::kUp;
    if (was_up) has_it_.erase(node.id);
    Set(node.id, was_up && random_() % 2 == 0 ? NodeState::kDown : NodeState::kUp);
    if (was_up) Do(chunk, chunk.OnSessionsLost(situation_, {node.id}));
  }
  void DeliverOne(ChunkCopies& chunk) {
    const size_t i = random_() % messages_.size();
    const Message message = messages_[i];
    messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(i));
    Deliver(chunk, message);
  }

  enum class NodesAre { kUp, kChanging };
  bool Run(ChunkCopies& chunk, int steps, NodesAre nodes_are);
  void Begin(ChunkCopies& chunk);
  void AllUp();

  std::mt19937 random_{static_cast<unsigned>(GetParam())};
  bool is_pinned_ = true;
  std::set<NodeId> has_it_;
  std::vector<Message> messages_;
};

// Until it is done, or `steps` are over; true: it is.
bool RandomOrder::Run(ChunkCopies& chunk, int steps, NodesAre nodes_are) {
  for (int step = 0; step < steps && !chunk.is_done(); ++step) {
    situation_.now += std::chrono::milliseconds(100);
    if (nodes_are == NodesAre::kChanging && random_() % 4 == 0) ChangeNode(chunk);
    if (chunk.is_under_replicated() && random_() % 2 == 0) Do(chunk, chunk.Retry(situation_, is_pinned_));
    if (!chunk.is_done() && !messages_.empty()) DeliverOne(chunk);
  }
  return chunk.is_done();
}

void RandomOrder::Begin(ChunkCopies& chunk) {
  messages_.clear();
  situation_.copies = situation_.min_replicas = 2 + random_() % 2;
  AllUp();
  Do(chunk, chunk.Begin(situation_));
}

void RandomOrder::AllUp() {
  for (const NodeInfo& node : std::vector<NodeInfo>(nodes_)) {
    if (node.state != NodeState::kUp) Set(node.id, NodeState::kUp);
  }
}

TEST_P(RandomOrder, WhatIsSaidToBeReplicatedIs) {
  for (int run = 0; run < 200; ++run) {
    has_it_.clear();
    const auto chunk = MakePut();
    Begin(*chunk);
    Run(*chunk, 60, NodesAre::kChanging);
    AllUp();
    ASSERT_TRUE(Run(*chunk, 2000, NodesAre::kUp)) << "run " << run << ": it hangs";
    ASSERT_EQ(chunk->end().outcome, Outcome::kReplicated);
  }
}

// It lies on one node, which may lose it; and the pin goes in the middle.
TEST_P(RandomOrder, ACoveredChunkIsReplicatedOrGivenUpOnceNobodyNeedsIt) {
  for (int run = 0; run < 200; ++run) {
    has_it_ = {second_};
    is_pinned_ = true;
    const auto chunk = MakeCovered();
    Begin(*chunk);
    if (!Run(*chunk, 60, NodesAre::kChanging)) {
      AllUp();
      is_pinned_ = random_() % 2 == 0;
      const bool is_done = Run(*chunk, 2000, NodesAre::kUp);
      ASSERT_TRUE(is_done || (is_pinned_ && has_it_.empty())) << "run " << run << ": it hangs";
      if (!is_done) continue;
    }
    const bool may_be_given_up = !is_pinned_;
    ASSERT_TRUE(chunk->end().outcome == Outcome::kReplicated || may_be_given_up);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomOrder, ::testing::Range(1, 11));

}  // namespace
}  // namespace cairnfs::cluster
