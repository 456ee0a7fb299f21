// Placement by simulation. Seeds are fixed: what fails once fails always.
#include "cluster/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <map>
#include <random>
#include <set>

#include "../../support/sanitizers.h"
#include "placement_fixture.h"

namespace cairnfs::cluster {
namespace {

constexpr size_t kScale = kAddressSanitizer || kThreadSanitizer ? 40 : 1;

// Ids that differ in one byte or two only: the worst that a person would choose.
NodeId PlainId(uint16_t number) {
  NodeId id;
  std::memcpy(id.bytes.data() + 14, &number, sizeof number);
  return id;
}

double TotalWeight(const View& view) {
  double total = 0;
  for (const NodeInfo& node : view.nodes) total += node.weight;
  return total;
}

size_t IndexOf(const View& view, const NodeInfo* node) { return static_cast<size_t>(node - view.nodes.data()); }

std::vector<uint64_t> CountHomes(const View& view, size_t digests, Source& source) {
  std::vector<uint64_t> counts(view.nodes.size());
  for (size_t i = 0; i < digests; i++) counts[IndexOf(view, First(view, source.NextDigest(), 1)[0])]++;
  return counts;
}

// Of counts that follow the weights but for chance: its mean is the number of nodes less one, its variance twice that.
double ChiSquare(const View& view, const std::vector<uint64_t>& counts, size_t digests) {
  const double total = TotalWeight(view);
  double sum = 0;
  for (size_t i = 0; i < counts.size(); i++) {
    const double expected = static_cast<double>(digests) * view.nodes[i].weight / total;
    sum += (static_cast<double>(counts[i]) - expected) * (static_cast<double>(counts[i]) - expected) / expected;
  }
  return sum;
}

// Each node is within six standard deviations of its share, and all together deviate no more than chance: shares that
// were wrong by 5 % each would raise chi-square by 0.0025 * digests, with a million digests by 2,500; five standard
// deviations of it are 224 with a thousand nodes.
void ExpectOnlyChance(const View& view, const std::vector<uint64_t>& counts, size_t digests) {
  const double freedom = static_cast<double>(counts.size() - 1);
  EXPECT_NEAR(ChiSquare(view, counts, digests), freedom, 5 * std::sqrt(2 * freedom));
  for (size_t i = 0; i < counts.size(); i++) {
    const double expected = static_cast<double>(digests) * view.nodes[i].weight / TotalWeight(view);
    EXPECT_NEAR(static_cast<double>(counts[i]), expected, 6 * std::sqrt(expected)) << i;
  }
}

// --- Balance. ---

TEST(Placement, AThousandNodesGetTheirSharesButForChance) {
  Source source(1);
  const View view(MixedNodes(1000, source), 1);
  const size_t digests = 1'000'000 / kScale;
  const std::vector<uint64_t> counts = CountHomes(view, digests, source);
  ExpectOnlyChance(view, counts, digests);
  std::map<double, std::pair<double, double>> classes;  // by weight: counted, expected
  for (size_t i = 0; i < counts.size(); i++) {
    const double weight = view.nodes[i].weight;
    classes[weight].first += static_cast<double>(counts[i]);
    classes[weight].second += static_cast<double>(digests) * weight / TotalWeight(view);
  }
  // The least class expects 66,000 (1,650 under sanitizers): chance moves it by 0.4 % (2.5 %).
  for (const auto& [weight, sums] : classes) EXPECT_NEAR(sums.first / sums.second, 1, 0.05) << weight;
}

TEST(Placement, EachOfManyEqualNodesIsWithinFivePercentOfItsShare) {
  constexpr size_t kNodes = 100 / (kScale > 1 ? 4 : 1), kParts = 4, kExpected = 8000;
  Source source(6);
  std::vector<NodeInfo> nodes;
  for (size_t i = 0; i < kNodes; i++) nodes.push_back(Node(source.NextId()));
  const View view(nodes, 1);
  std::vector<std::future<std::vector<uint64_t>>> parts;
  for (size_t part = 0; part < kParts; part++) {
    parts.push_back(std::async(std::launch::async, [&view, part] {
      Source digests(100 + part);
      return CountHomes(view, kNodes * kExpected / kParts, digests);
    }));
  }
  std::vector<uint64_t> counts(kNodes);
  for (auto& part : parts) {
    const std::vector<uint64_t> counted = part.get();
    for (size_t i = 0; i < kNodes; i++) counts[i] += counted[i];
  }
  // Chance moves a node by 1.1 %.
  for (size_t i = 0; i < kNodes; i++) EXPECT_NEAR(static_cast<double>(counts[i]) / kExpected, 1, 0.05) << i;
}

// With weights, so few that chance is small beside 5 %. Of a thousand it moves the least by 6 % in a million digests,
// and thirty million are too many for a test: for those see ExpectOnlyChance.
TEST(Placement, EachOfSixtyNodesIsWithinFivePercentOfItsShare) {
  Source source(2);
  const View view(MixedNodes(kScale > 1 ? 6 : 60, source), 1);
  // The least node expects 13,300 digests: chance moves it by 0.9 %, and five times that for none of sixty.
  const size_t digests = 3'000'000 / kScale;
  const std::vector<uint64_t> counts = CountHomes(view, digests, source);
  for (size_t i = 0; i < counts.size(); i++) {
    const double expected = static_cast<double>(digests) * view.nodes[i].weight / TotalWeight(view);
    EXPECT_NEAR(static_cast<double>(counts[i]) / expected, 1, 0.05) << i;
  }
}

TEST(Placement, IdsThatAreNearlyEqualAreAsGood) {
  Source source(3);
  std::vector<NodeInfo> nodes;
  for (uint16_t i = 0; i < 200; i++) nodes.push_back(Node(PlainId(i)));
  const View view(nodes, 1);
  const size_t digests = 500'000 / kScale;
  ExpectOnlyChance(view, CountHomes(view, digests, source), digests);
}

// Who is second does not depend on who is first, beyond the weights.
TEST(Placement, TheSecondOfAFirstIsSpreadEvenly) {
  Source source(4);
  std::vector<NodeInfo> nodes;
  for (uint16_t i = 0; i < 20; i++) nodes.push_back(Node(PlainId(i)));
  const View view(nodes, 1);
  const size_t digests = 1'000'000 / kScale;
  std::map<std::pair<size_t, size_t>, uint64_t> pairs;
  for (size_t i = 0; i < digests; i++) {
    const std::vector<const NodeInfo*> first = First(view, source.NextDigest(), 2);
    pairs[{IndexOf(view, first[0]), IndexOf(view, first[1])}]++;
  }
  ASSERT_EQ(pairs.size(), 20u * 19);
  const double expected = static_cast<double>(digests) / (20 * 19);
  double chi_square = 0;
  for (const auto& [pair, count] : pairs) {
    chi_square += std::pow(static_cast<double>(count) - expected, 2) / expected;
  }
  EXPECT_NEAR(chi_square, 379, 5 * std::sqrt(2 * 379));
}

TEST(Placement, ThreeCopiesFollowTheWeights) {
  Source source(5);
  const View view(MixedNodes(1000, source), 1);
  const size_t digests = 300'000 / kScale;
  std::map<double, double> counted;
  for (size_t i = 0; i < digests; i++) {
    const std::vector<const NodeInfo*> targets = Targets(view, source.NextDigest(), nullptr, 3);
    ASSERT_EQ(Ids(targets).size(), 3u);
    for (const NodeInfo* node : targets) counted[node->weight]++;
  }
  for (const auto& [weight, count] : counted) {
    const double expected = 3.0 * static_cast<double>(digests) * 250 * weight / TotalWeight(view);
    EXPECT_NEAR(count / expected, 1, 0.05) << weight;
  }
}

// --- Movement. ---

struct Movement {
  uint64_t moved = 0;        // copies that are on a node on which they were not
  uint64_t needed = 0;       // the least that takes the copies per node from what they were to what they are
  double gained = 0;         // by the nodes that have more now
  double gain_expected = 0;  // by shares
};

Movement Move(const View& before, const View& after, unsigned copies, size_t digests, Source& source) {
  Movement movement;
  std::map<NodeId, int64_t> change;
  for (size_t i = 0; i < digests; i++) {
    const Digest digest = source.NextDigest();
    const std::set<NodeId> old_ids = Ids(Targets(before, digest, nullptr, copies));
    const std::set<NodeId> new_ids = Ids(Targets(after, digest, nullptr, copies));
    for (const NodeId& id : old_ids) change[id]--;
    for (const NodeId& id : new_ids) change[id]++;
    for (const NodeId& id : new_ids) movement.moved += !old_ids.contains(id);
  }
  for (const auto& [id, count] : change) movement.needed += static_cast<uint64_t>(std::max<int64_t>(count, 0));
  const double placed = static_cast<double>(copies) * static_cast<double>(digests);
  for (const NodeInfo& node : after.nodes) {
    const NodeInfo* old_node = before.Find(node.id);
    const double old_share = old_node == nullptr ? 0 : old_node->weight / TotalWeight(before);
    movement.gain_expected += placed * std::max(0.0, node.weight / TotalWeight(after) - old_share);
  }
  return movement;
}

void ExpectLittleMovement(const Movement& movement) {
  EXPECT_GT(movement.moved, 0u);
  EXPECT_LE(static_cast<double>(movement.moved), 1.1 * static_cast<double>(movement.needed));
  const double moved = static_cast<double>(movement.moved);
  EXPECT_LE(moved, 1.1 * movement.gain_expected + 4 * std::sqrt(movement.gain_expected));
  EXPECT_GE(moved, 0.9 * movement.gain_expected - 4 * std::sqrt(movement.gain_expected));
}

TEST(Placement, ANodeThatComesTakesItsShareAndNothingElseMoves) {
  Source source(6);
  std::vector<NodeInfo> nodes = MixedNodes(1000, source);
  const View before(nodes, 1);
  nodes.push_back(Node(source.NextId(), 8));
  const View after(nodes, 2);
  for (unsigned copies : {1, 2, 3}) {
    SCOPED_TRACE(copies);
    ExpectLittleMovement(Move(before, after, copies, 100'000 / kScale, source));
  }
}

TEST(Placement, ANodeThatGoesMovesWhatItHad) {
  Source source(7);
  std::vector<NodeInfo> nodes = MixedNodes(1000, source);
  const View before(nodes, 1);
  nodes[503].state = NodeState::kOut;  // of weight 8
  const View out(nodes, 2);
  nodes.erase(nodes.begin() + 503);
  const View gone(nodes, 3);
  for (unsigned copies : {1, 3}) {
    SCOPED_TRACE(copies);
    ExpectLittleMovement(Move(before, gone, copies, 100'000 / kScale, source));
  }
  for (size_t i = 0; i < 1000; i++) {
    const Digest digest = source.NextDigest();
    EXPECT_EQ(Ids(Targets(out, digest, nullptr, 3)), Ids(Targets(gone, digest, nullptr, 3)));
  }
}

TEST(Placement, ANewWeightMovesTheDifference) {
  Source source(8);
  std::vector<NodeInfo> nodes = MixedNodes(1000, source);
  const View before(nodes, 1);
  nodes[100].weight = 10;  // it was 1
  const View heavier(nodes, 2);
  for (unsigned copies : {1, 3}) {
    SCOPED_TRACE(copies);
    ExpectLittleMovement(Move(before, heavier, copies, 100'000 / kScale, source));
    ExpectLittleMovement(Move(heavier, before, copies, 100'000 / kScale, source));
  }
}

TEST(Placement, WithDomainsOneCopyMovesPerChunkThatMoves) {
  Source source(9);
  std::vector<NodeInfo> nodes = MixedNodes(300, source);
  for (size_t i = 0; i < nodes.size(); i++) nodes[i].domain = "rack" + std::to_string(i / 4 % 15);
  const View before(nodes, 1);
  nodes.push_back(Node(source.NextId(), 8, "rack3"));
  const View after(nodes, 2);
  uint64_t moved = 0;
  for (size_t i = 0; i < 100'000 / kScale; i++) {
    const Digest digest = source.NextDigest();
    const std::set<NodeId> old_ids = Ids(Targets(before, digest, nullptr, 3));
    const std::set<NodeId> new_ids = Ids(Targets(after, digest, nullptr, 3));
    size_t changed = 0;
    for (const NodeId& id : new_ids) changed += !old_ids.contains(id);
    EXPECT_LE(changed, 1u);
    moved += changed;
  }
  EXPECT_GT(moved, 0u);
}

TEST(Placement, ANodeThatIsDownMovesOnlyItsOwn) {
  Source source(10);
  std::vector<NodeInfo> nodes = MixedNodes(50, source);
  const View before(nodes, 1);
  const NodeId down = nodes[7].id;
  nodes[7].state = NodeState::kDown;
  const View after(nodes, 2);
  for (size_t i = 0; i < 5'000; i++) {
    const Digest digest = source.NextDigest();
    std::set<NodeId> old_ids = Ids(Targets(before, digest, nullptr, 3));
    const std::set<NodeId> new_ids = Ids(Targets(after, digest, nullptr, 3));
    EXPECT_FALSE(new_ids.contains(down));
    EXPECT_EQ(new_ids.size(), 3u);
    old_ids.erase(down);
    EXPECT_TRUE(std::includes(new_ids.begin(), new_ids.end(), old_ids.begin(), old_ids.end()));
    const size_t home = IndexOf(after, First(after, digest, 1)[0]);
    EXPECT_EQ(First(before, digest, 1)[0], &before.nodes[home]);  // places are kept
  }
}

// --- Rules. ---

TEST(Placement, FirstIsTheBeginningOfOrder) {
  Source source(11);
  std::vector<NodeInfo> nodes = MixedNodes(40, source);
  for (size_t i : {3, 17, 18}) nodes[i].weight = 0;
  nodes[5].state = NodeState::kOut;
  nodes[6].state = NodeState::kDown;
  nodes[7].full = true;
  const View view(nodes, 1);
  for (size_t i = 0; i < 2'000; i++) {
    const Digest digest = source.NextDigest();
    const std::vector<const NodeInfo*> order = Order(view, digest);
    ASSERT_EQ(order.size(), 39u);
    ASSERT_EQ(Ids(order).size(), 39u);
    EXPECT_EQ(Ids(order).count(nodes[5].id), 0u);
    for (size_t k = 0; k < order.size(); k++) EXPECT_EQ(order[k]->weight == 0, k >= 36);
    for (size_t count : {0, 1, 2, 7, 36, 38, 39, 50}) {
      std::vector<const NodeInfo*> head(order.begin(), order.begin() + std::min<size_t>(count, order.size()));
      EXPECT_EQ(First(view, digest, count), head);
    }
  }
}

TEST(Placement, NoNodes) {
  const View view;
  EXPECT_TRUE(Order(view, Digest()).empty());
  EXPECT_TRUE(First(view, Digest(), 3).empty());
  EXPECT_TRUE(Targets(view, Digest(), nullptr, 3).empty());
}

// A change of these would move all data of every cluster there is.
TEST(Placement, OrderOfKnownDigestsStays) {
  std::vector<NodeInfo> nodes;
  for (uint16_t i = 0; i < 8; i++) nodes.push_back(Node(PlainId(i), 1 + i % 3));
  const View view(nodes, 1);
  std::string orders;
  for (int i = 0; i < 4; i++) {
    Digest digest;
    digest.bytes.fill(static_cast<std::byte>(0x11 * (i + 1)));
    for (const NodeInfo* node : Order(view, digest)) orders += std::to_string(IndexOf(view, node));
    orders += ' ';
  }
  EXPECT_EQ(orders, "14275360 42750136 41025736 74032516 ");
}

TEST(NodeId, TextAndBack) {
  const auto id = NodeId::FromHex("00112233-4455-6677-8899-aabbccddeeFF");
  ASSERT_TRUE(id.has_value());
  EXPECT_EQ(id->ToHex(), "00112233445566778899aabbccddeeff");
  EXPECT_EQ(NodeId::FromHex(id->ToHex()), id);
  EXPECT_EQ(NodeId::FromKey(id->AsKey()), id);
  EXPECT_FALSE(NodeId::FromHex("").has_value());
  EXPECT_FALSE(NodeId::FromHex("00112233445566778899aabbccddee").has_value());
  EXPECT_FALSE(NodeId::FromHex("00112233445566778899aabbccddeeff00").has_value());
  EXPECT_FALSE(NodeId::FromHex("00112233445566778899aabbccddeefg").has_value());
  EXPECT_FALSE(NodeId::FromKey("short").has_value());
}

TEST(View, FindsByIdWhateverTheOrderGiven) {
  const View view({Node(PlainId(9)), Node(PlainId(2)), Node(PlainId(5))}, 7);
  EXPECT_EQ(view.nodes[0].id, PlainId(2));
  EXPECT_EQ(view.Find(PlainId(9)), &view.nodes[2]);
  EXPECT_EQ(view.Find(PlainId(1)), nullptr);
  EXPECT_EQ(view.Find(PlainId(10)), nullptr);
  EXPECT_EQ(view.revision, 7u);
}

}  // namespace
}  // namespace cairnfs::cluster
