// Which nodes get the copies of a chunk: failure domains, full and draining nodes, the writer.
#include <algorithm>

#include "placement_fixture.h"

namespace cairnfs::cluster {
namespace {

TEST(Placement, NoTwoCopiesInOneDomainWhileDomainsLast) {
  Source source(12);
  std::vector<NodeInfo> nodes = MixedNodes(100, source);
  for (size_t i = 0; i < nodes.size(); i++) nodes[i].domain = "rack" + std::to_string(i % 3);
  nodes[40].domain = "";  // its own
  const View view(nodes, 1);
  for (size_t i = 0; i < 2'000; i++) {
    const Digest digest = source.NextDigest();
    const NodeInfo* writer = &view.nodes[i % view.nodes.size()];
    for (const NodeInfo* from : {writer, static_cast<const NodeInfo*>(nullptr)}) {
      const std::vector<const NodeInfo*> targets = Targets(view, digest, from, 3);
      ASSERT_EQ(Ids(targets).size(), 3u);
      std::set<std::string> domains;
      for (const NodeInfo* node : targets) domains.insert(node->domain);
      EXPECT_EQ(domains.size(), 3u);
      if (from != nullptr) {
        EXPECT_EQ(targets[0], writer);
      }
    }
    EXPECT_EQ(Ids(Targets(view, digest, writer, 6)).size(), 6u);  // more copies than domains
  }
}

// What Targets means, said the slow way.
std::vector<const NodeInfo*> SlowTargets(const View& view, const Digest& digest, unsigned copies) {
  std::vector<const NodeInfo*> targets;
  std::set<std::string> domains;
  for (bool other_domain : {true, false}) {
    for (const NodeInfo* node : Order(view, digest)) {
      if (targets.size() == copies || node->state != NodeState::kUp || node->full || node->weight == 0) continue;
      if (std::find(targets.begin(), targets.end(), node) != targets.end()) continue;
      if (other_domain && !node->domain.empty() && !domains.insert(node->domain).second) continue;
      targets.push_back(node);
    }
  }
  return targets;
}

TEST(Placement, TargetsAreTheFirstOfTheOrderThatMayBeOne) {
  Source source(13);
  std::mt19937_64 random(13);
  for (int round = 0; round < 200; round++) {
    std::vector<NodeInfo> nodes = MixedNodes(1 + random() % 12, source);
    for (NodeInfo& node : nodes) {
      if (random() % 2 != 0) node.domain = "rack" + std::to_string(random() % 3);
      if (random() % 5 == 0) node.state = random() % 2 != 0 ? NodeState::kDown : NodeState::kOut;
      if (random() % 6 == 0) node.full = true;
      if (random() % 8 == 0) node.weight = 0;
    }
    const View view(nodes, 1);
    for (int i = 0; i < 50; i++) {
      const Digest digest = source.NextDigest();
      for (unsigned copies : {0, 1, 2, 3, 5}) {
        EXPECT_EQ(Targets(view, digest, nullptr, copies), SlowTargets(view, digest, copies));
      }
    }
  }
}

TEST(Placement, MoreCopiesGoToDomainsThatHaveNone) {
  Source source(15);
  std::mt19937_64 random(15);
  for (int round = 0; round < 200; round++) {
    std::vector<NodeInfo> nodes = MixedNodes(1 + random() % 12, source);
    for (NodeInfo& node : nodes) {
      if (random() % 3 != 0) node.domain = "rack" + std::to_string(random() % 3);
      if (random() % 6 == 0) node.full = true;
    }
    const View view(nodes, 1);
    for (int i = 0; i < 50; i++) {
      const Digest digest = source.NextDigest();
      std::vector<const NodeInfo*> have;
      for (const NodeInfo& node : view.nodes) {
        if (random() % 4 == 0) have.push_back(&node);
      }
      const size_t count = random() % 4;
      std::vector<const NodeInfo*> expected;
      for (bool other_domain : {true, false}) {
        for (const NodeInfo* node : Order(view, digest)) {
          std::vector<const NodeInfo*> all = have;
          all.insert(all.end(), expected.begin(), expected.end());
          if (expected.size() == count || !node->takes_chunks() || Ids(all).contains(node->id)) continue;
          const size_t domains = DomainCount(all);
          all.push_back(node);
          if (!other_domain || DomainCount(all) > domains) expected.push_back(node);
        }
      }
      EXPECT_EQ(MoreTargets(view, digest, have, count), expected);
    }
  }
}

TEST(Placement, TheWriterKeepsOneUnlessItDrainsOrIsFull) {
  Source source(14);
  std::vector<NodeInfo> nodes = MixedNodes(6, source);
  nodes[1].weight = 0;
  nodes[2].full = true;
  nodes[3].state = NodeState::kDown;
  const View view(nodes, 1);
  const Digest digest = source.NextDigest();
  EXPECT_EQ(Targets(view, digest, view.Find(nodes[0].id), 2)[0]->id, nodes[0].id);
  EXPECT_EQ(Targets(view, digest, view.Find(nodes[3].id), 2)[0]->id, nodes[3].id);
  EXPECT_EQ(Ids(Targets(view, digest, view.Find(nodes[1].id), 6)).count(nodes[1].id), 0u);
  EXPECT_EQ(Ids(Targets(view, digest, view.Find(nodes[2].id), 6)).count(nodes[2].id), 0u);
  EXPECT_EQ(Targets(view, digest, view.Find(nodes[2].id), 6).size(), 3u);  // 0, 4 and 5
  EXPECT_EQ(Targets(view, digest, view.Find(nodes[0].id), 0).size(), 0u);
}

}  // namespace
}  // namespace cairnfs::cluster
