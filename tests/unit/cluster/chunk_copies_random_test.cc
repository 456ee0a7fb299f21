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
    if (is_stored) {
      has_it_.insert(node);
      recorded_.insert(node);
    }
    messages_.push_back({Message::Kind::kSend, Of(node), is_stored});
  }
  void Do(ChunkCopies& chunk, const Actions& actions) {
    using MessageKind = Message::Kind;
    for (const auto& home : {actions.ask, actions.ask_again}) {
      if (home) messages_.push_back({MessageKind::kAsk, Of(*home)});
    }
    for (const NodeId& node : actions.confirm) {
      const bool confirms = Reach(node) && has_it_.contains(node);
      if (confirms) recorded_.insert(node);
      messages_.push_back({MessageKind::kConfirm, Of(node), confirms});
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
        recorded_.insert(self_);
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
    for (const NodeId& node : {home.node, self_}) {
      if (has_it_.contains(node)) recorded_.insert(node);  // both are looked up
    }
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
    if (was_up) is_any_lost_ = has_it_.erase(node.id) > 0 || is_any_lost_;
    Set(node.id, was_up && random_() % 2 == 0 ? NodeState::kDown : NodeState::kUp);
    if (was_up) Do(chunk, chunk.OnSessionsLost(situation_, {node.id}));
  }
  // All nodes begin to record, then this one begins the epoch.
  void BeginEpoch(ChunkCopies& chunk) {
    recorded_.clear();
    ++situation_.epoch;
    if (has_it_.contains(self_)) recorded_.insert(self_);
    Do(chunk, chunk.OnEpoch(situation_));
    was_safe_ = false;
  }
  // What nobody has asked for goes, once the chunk was safe in this epoch: no record names it yet.
  void Sweep(ChunkCopies& chunk) {
    if (situation_.epoch == 0 || chunk.is_done()) return;
    was_safe_ = was_safe_ || chunk.is_safe();
    if (!was_safe_) return;
    std::erase_if(has_it_, [this](const NodeId& node) { return !recorded_.contains(node); });
    const bool is_in_memory = !chunk.is_covered() && !chunk.bytes().empty();
    EXPECT_TRUE(!has_it_.empty() || is_in_memory || chunk.failure() || is_any_lost_);
  }
  void DeliverOne(ChunkCopies& chunk) {
    const size_t i = random_() % messages_.size();
    const Message message = messages_[i];
    messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(i));
    Deliver(chunk, message);
  }

  enum class NodesAre { kUp, kChanging, kCollecting };
  bool Run(ChunkCopies& chunk, int steps, NodesAre nodes_are);
  void Begin(ChunkCopies& chunk);
  void AllUp();

  std::mt19937 random_{static_cast<unsigned>(GetParam())};
  bool is_pinned_ = true;
  bool was_safe_ = false, is_any_lost_ = false;
  std::set<NodeId> has_it_, recorded_;
  std::vector<Message> messages_;
};

// Until it is done, or `steps` are over; true: it is.
bool RandomOrder::Run(ChunkCopies& chunk, int steps, NodesAre nodes_are) {
  for (int step = 0; step < steps && !chunk.is_done(); ++step) {
    situation_.now += std::chrono::milliseconds(100);
    if (nodes_are == NodesAre::kChanging && random_() % 4 == 0) ChangeNode(chunk);
    if (nodes_are == NodesAre::kCollecting && random_() % 8 == 0) BeginEpoch(chunk);
    if (nodes_are == NodesAre::kCollecting && random_() % 4 == 0) Sweep(chunk);
    if (chunk.is_under_replicated() && random_() % 2 == 0) Do(chunk, chunk.Retry(situation_, is_pinned_));
    if (!chunk.is_done() && !messages_.empty()) DeliverOne(chunk);
  }
  return chunk.is_done();
}

void RandomOrder::Begin(ChunkCopies& chunk) {
  messages_.clear();
  recorded_.clear();
  was_safe_ = is_any_lost_ = false;
  situation_.epoch = 0;
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

// Nodes free what nobody has asked them for in this epoch. What is said to be replicated then was asked for in it.
TEST_P(RandomOrder, WhatIsSavedWhileOthersCollectIsReplicated) {
  for (int run = 0; run < 400; ++run) {
    // Put anew, put where it is known, or only covered.
    has_it_.clear();
    if (run % 3 != 0) has_it_ = {second_};
    if (run % 2 == 0) has_it_.insert(home_);
    is_pinned_ = true;
    const bool is_covered = run % 5 == 0 && !has_it_.empty();
    const auto chunk = is_covered ? MakeCovered() : MakePut();
    Begin(*chunk);
    if (!Run(*chunk, 100, NodesAre::kCollecting)) {
      ASSERT_TRUE(Run(*chunk, 2000, NodesAre::kUp)) << "run " << run << ": it hangs";
    }
    ASSERT_EQ(chunk->end().outcome, Outcome::kReplicated) << run;
    // What the others do not know of goes now.
    if (situation_.epoch > 0) std::erase_if(has_it_, [this](const NodeId& node) { return !recorded_.contains(node); });
    ASSERT_GE(has_it_.size(), situation_.copies) << run;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomOrder, ::testing::Range(1, 11));

}  // namespace
}  // namespace cairnfs::cluster
