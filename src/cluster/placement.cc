#include "cluster/placement.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cluster/mix.h"

namespace cairnfs::cluster {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// In (0, 1), uniform, with 52 bits: one more, and the last value would be rounded to 1. Near 0, where the winners are,
// distances differ by as little as 2^-52.
double Uniform(uint64_t hash) { return (static_cast<double>(hash >> 12) + 0.5) * 0x1p-52; }

// -ln(1 - v) for v in (0, 1), never less than v. std::log1p may differ in its last bit from one libm to the next, or
// with the processor that it finds; this does not. Relative error below 2^-45, which moves nothing that counts.
double MinusLogOfOneMinus(double v) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  double rest = 0;
  double numerator = v;  // 1 - v = (1 - m) / 2^exponent; m, in [0, 1/2], is v itself as long as that is small
  if (v > 0.5) {
    int exponent;
    numerator = 1 - 2 * std::frexp(1 - v, &exponent);  // in [-1, 0]: 2 * fraction lies in [1, 2)
    rest = (1 - exponent) * kLn2;
  }
  // -ln(1 - m) = 2 artanh(m / (2 - m)); |m / (2 - m)| <= 1/3, so that 15 terms leave less than 2^-48.
  const double z = numerator / (2 - numerator);
  const double square = z * z;
  double sum = 0;
  for (int k = 29; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return std::max(v, rest + 2 * z * sum);
}

// How far a node is from the digest; its bound is less or equal and needs no logarithm. Both are rounded products of
// the same positive factor with numbers of which one is not less, so that holds to the last bit.
double Distance(double v, const View::Candidate& candidate) { return MinusLogOfOneMinus(v) * candidate.inverse_weight; }
double DistanceBound(double v, const View::Candidate& candidate) { return v * candidate.inverse_weight; }

double UniformOf(uint64_t digest_word, const View::Candidate& candidate) {
  return Uniform(Mix(digest_word ^ candidate.seed));
}

uint64_t WordOf(const Digest& digest) { return LoadU64(digest.bytes.data()); }

struct Ranked {
  double distance;
  const View::Candidate* candidate;
};

// Of two equally far nodes the one with the lesser id is nearer: candidates are in the order of ids.
bool Nearer(const Ranked& a, const Ranked& b) {
  return a.distance != b.distance ? a.distance < b.distance : a.candidate < b.candidate;
}

// The nearest few, in order.
class Nearest {
 public:
  explicit Nearest(size_t count) : count_(count) { ranked_.reserve(count + 1); }

  // Candidates come in the order of ids, so that one as far as the last that is kept is not nearer.
  double limit() const { return ranked_.size() < count_ ? kInfinity : ranked_.back().distance; }
  void Add(const Ranked& added) {
    ranked_.insert(std::upper_bound(ranked_.begin(), ranked_.end(), added, Nearer), added);
    if (ranked_.size() > count_) ranked_.pop_back();
  }
  // As Add, but keeps only the nearest of each failure domain.
  void AddOfDomain(const Ranked& added) {
    auto same = std::find_if(ranked_.begin(), ranked_.end(),
                             [&](const Ranked& ranked) { return ranked.candidate->domain == added.candidate->domain; });
    if (same != ranked_.end()) {
      if (!Nearer(added, *same)) return;
      ranked_.erase(same);
    }
    Add(added);
  }
  const std::vector<Ranked>& ranked() const { return ranked_; }

 private:
  const size_t count_;
  std::vector<Ranked> ranked_;
};

// Offers each candidate that is nearer than `nearest.limit()` to `add`. Those of weight 0 are infinitely far.
template <typename Add>
void Scan(const View& view, uint64_t word, const Nearest& nearest, Add add) {
  double limit = nearest.limit();
  for (const View::Candidate& candidate : view.candidates) {
    const double v = UniformOf(word, candidate);
    if (DistanceBound(v, candidate) >= limit) continue;
    const double distance = Distance(v, candidate);
    if (distance >= limit) continue;
    add(Ranked{distance, &candidate});
    limit = nearest.limit();
  }
}

// The candidates of weight 0, which come after all others, in an order of their own for each digest.
std::vector<Ranked> Draining(const View& view, uint64_t word) {
  std::vector<Ranked> draining;
  for (const View::Candidate& candidate : view.candidates) {
    if (candidate.inverse_weight == kInfinity) draining.push_back({UniformOf(word, candidate), &candidate});
  }
  std::sort(draining.begin(), draining.end(), Nearer);
  return draining;
}

// As the candidates' numbers say it.
bool ShareDomain(const NodeInfo& a, const NodeInfo& b) {
  return a.id == b.id || (!a.domain.empty() && a.domain == b.domain);
}

bool IsAmong(const std::vector<const NodeInfo*>& nodes, const NodeInfo& node) {
  return std::any_of(nodes.begin(), nodes.end(), [&](const NodeInfo* one) { return one->id == node.id; });
}

// What is chosen for one digest, of the nodes that may be, beside those that have it.
template <typename MayBe>
class Chosen {
 public:
  Chosen(const View& view, uint64_t word, const std::vector<const NodeInfo*>& have, MayBe may_be)
      : view_(view), word_(word), have_(have), may_be_(std::move(may_be)) {}

  // The nearest node of each domain in which nobody has it; the nearest domains first.
  void AddOfOtherDomains(size_t count) {
    Add(count, [&](Nearest& nearest, const Ranked& ranked, const NodeInfo& node) {
      const bool is_covered =
          std::any_of(have_.begin(), have_.end(), [&](const NodeInfo* one) { return ShareDomain(*one, node); });
      if (!is_covered) nearest.AddOfDomain(ranked);
    });
  }
  void AddOfAnyDomain(size_t count) {
    Add(count, [](Nearest& nearest, const Ranked& ranked, const NodeInfo&) { nearest.Add(ranked); });
  }

  std::vector<const NodeInfo*> Nodes() && { return std::move(nodes_); }

 private:
  template <typename Offer>
  void Add(size_t count, Offer offer) {
    if (nodes_.size() >= count) return;
    Nearest nearest(count - nodes_.size());
    Scan(view_, word_, nearest, [&](const Ranked& ranked) {
      const NodeInfo& node = view_.nodes[ranked.candidate->node];
      if (may_be_(node) && !IsAmong(nodes_, node) && !IsAmong(have_, node)) offer(nearest, ranked, node);
    });
    for (const Ranked& ranked : nearest.ranked()) nodes_.push_back(&view_.nodes[ranked.candidate->node]);
  }

  const View& view_;
  const uint64_t word_;
  const std::vector<const NodeInfo*>& have_;
  const MayBe may_be_;
  std::vector<const NodeInfo*> nodes_;
};

}  // namespace

std::vector<const NodeInfo*> First(const View& view, const Digest& digest, size_t count) {
  count = std::min(count, view.candidates.size());
  std::vector<const NodeInfo*> nodes;
  if (count == 0) return nodes;
  nodes.reserve(count);
  const uint64_t word = WordOf(digest);
  Nearest nearest(count);
  Scan(view, word, nearest, [&](const Ranked& ranked) { nearest.Add(ranked); });
  for (const Ranked& ranked : nearest.ranked()) nodes.push_back(&view.nodes[ranked.candidate->node]);
  if (nodes.size() == count) return nodes;
  for (const Ranked& ranked : Draining(view, word)) {
    if (nodes.size() == count) break;
    nodes.push_back(&view.nodes[ranked.candidate->node]);
  }
  return nodes;
}

std::vector<const NodeInfo*> Order(const View& view, const Digest& digest) {
  const uint64_t word = WordOf(digest);
  std::vector<Ranked> all;
  all.reserve(view.candidates.size());
  for (const View::Candidate& candidate : view.candidates) {
    if (candidate.inverse_weight == kInfinity) continue;
    all.push_back({Distance(UniformOf(word, candidate), candidate), &candidate});
  }
  std::sort(all.begin(), all.end(), Nearer);
  const std::vector<Ranked> draining = Draining(view, word);
  all.insert(all.end(), draining.begin(), draining.end());
  std::vector<const NodeInfo*> nodes;
  nodes.reserve(all.size());
  for (const Ranked& ranked : all) nodes.push_back(&view.nodes[ranked.candidate->node]);
  return nodes;
}

std::vector<const NodeInfo*> MoreTargets(const View& view, const Digest& digest,
                                         const std::vector<const NodeInfo*>& have, size_t count, NewDomains new_domains,
                                         const std::optional<NodeId>& except) {
  Chosen chosen(view, WordOf(digest), have,
                [&](const NodeInfo& node) { return node.takes_chunks() && node.id != except; });
  chosen.AddOfOtherDomains(count);
  if (new_domains == NewDomains::kFirst) chosen.AddOfAnyDomain(count);
  return std::move(chosen).Nodes();
}

std::vector<const NodeInfo*> Targets(const View& view, const Digest& digest, const std::vector<const NodeInfo*>& have,
                                     size_t copies, TargetsAmong among) {
  const std::vector<const NodeInfo*> none;
  Chosen chosen(view, WordOf(digest), none, [&](const NodeInfo& node) {
    const bool may_get_it = among == TargetsAmong::kAll && !node.full;
    return node.weight > 0 && (may_get_it || IsAmong(have, node));
  });
  chosen.AddOfOtherDomains(copies);
  chosen.AddOfAnyDomain(copies);
  return std::move(chosen).Nodes();
}

size_t DomainCount(const std::vector<const NodeInfo*>& nodes) {
  size_t count = 0;
  for (auto node = nodes.begin(); node != nodes.end(); ++node) {
    count += std::none_of(nodes.begin(), node, [&](const NodeInfo* earlier) { return ShareDomain(*earlier, **node); });
  }
  return count;
}

NodeId ActingHome(const View& view, const Digest& digest, const NodeId& self) {
  constexpr size_t kLookedAtFirst = 4;
  auto answers = [&](const NodeInfo* node) { return node->state == NodeState::kUp || node->id == self; };
  for (const NodeInfo* node : First(view, digest, kLookedAtFirst)) {
    if (answers(node)) return node->id;
  }
  for (const NodeInfo* node : Order(view, digest)) {
    if (answers(node)) return node->id;
  }
  return self;
}

}  // namespace cairnfs::cluster
