// Four nodes, of which the first is this one, and a chunk whose order begins with the second and the third.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "cluster/chunk_copies.h"
#include "cluster/placement.h"

namespace cairnfs::cluster {

class ChunkCopiesTest : public ::testing::Test {
 protected:
  using Actions = ChunkCopies::Actions;
  using Confirmation = ChunkCopies::Confirmation;
  using Kind = HasAnswer::Kind;
  using Local = ChunkCopies::Local;
  using Outcome = ChunkCopies::Outcome;
  using SendResult = ChunkCopies::SendResult;
  using State = ChunkCopies::State;
  using StoreResult = ChunkCopies::StoreResult;

  static constexpr size_t kSize = 1000;
  static std::vector<io::Slice> SomeBytes() {
    static const std::array<std::byte, kSize> kBytes{};
    return {io::Slice{{}, kBytes.data(), kBytes.size(), {}}};
  }

  ChunkCopiesTest() {
    for (uint8_t i = 1; i <= 4; ++i) {
      NodeInfo node;
      node.id.bytes[0] = static_cast<std::byte>(i);
      node.state = NodeState::kUp;
      node.session = i;
      nodes_.push_back(node);
    }
    self_ = nodes_[0].id;
    situation_ = {.self = self_,
                  .members = {},
                  .reachable = {},
                  .copies = 2,
                  .min_replicas = 2,
                  .now = Clock::time_point(std::chrono::hours(1)),
                  .store_fails = false,
                  .may_load = true};
    Look();
    ChooseDigest(nodes_[1].id, nodes_[2].id);
  }

  // The nodes as they are now.
  void Look() { situation_.members = situation_.reachable = std::make_shared<const View>(nodes_, ++revision_); }
  NodeInfo& Node(const NodeId& id) {
    return *std::find_if(nodes_.begin(), nodes_.end(), [&](const NodeInfo& node) { return node.id == id; });
  }
  void Set(const NodeId& id, NodeState state) {
    Node(id).state = state;
    Node(id).session = state == NodeState::kUp ? 100 + revision_ : 0;
    Look();
  }
  void SetFull(const NodeId& id) {
    Node(id).full = true;
    Look();
  }
  // Of a chunk whose order begins with these.
  void ChooseDigest(const NodeId& home, const NodeId& second) {
    std::mt19937 random(1);
    do {
      for (std::byte& byte : digest_.bytes) byte = static_cast<std::byte>(random());
    } while (First(*situation_.reachable, digest_, 2)[0]->id != home ||
             First(*situation_.reachable, digest_, 2)[1]->id != second);
    home_ = home;
    second_ = second;
  }
  PeerSession Of(const NodeId& id) const { return situation_.SessionOf(id); }

  std::unique_ptr<ChunkCopies> MakePut() const {
    auto chunk = std::make_unique<ChunkCopies>(digest_, kSize, ChunkCopies::Put{SomeBytes(), true, situation_.now});
    chunk->SetSequence(1);
    return chunk;
  }
  std::unique_ptr<ChunkCopies> MakeCovered() const {
    auto chunk = std::make_unique<ChunkCopies>(digest_, kSize, situation_.now);
    chunk->SetSequence(1);
    return chunk;
  }
  Actions AnswerOfHome(ChunkCopies& chunk, Kind kind, Holders holders = {}) {
    return chunk.OnHomeAnswer(situation_, Of(home_), {kind, std::move(holders)}, false);
  }
  // One that is stored here and on its way to its home.
  std::unique_ptr<ChunkCopies> MakeReplicating() {
    auto chunk = MakePut();
    EXPECT_EQ(chunk->Begin(situation_).ask, home_);
    const Actions actions = AnswerOfHome(*chunk, Kind::kClaim);
    EXPECT_TRUE(actions.store);
    EXPECT_EQ(actions.send, Holders{home_});
    return chunk;
  }

  std::vector<NodeInfo> nodes_;
  uint64_t revision_ = 0;
  NodeId self_, home_, second_;
  Digest digest_;
  Situation situation_;
};

}  // namespace cairnfs::cluster
