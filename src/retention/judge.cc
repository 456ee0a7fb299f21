#include "retention/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/utc_text.h"
#include "retention/step_pattern.h"

namespace cairnfs::retention {
namespace {

using Age = std::pair<uint64_t, Timestamp>;  // step and time: the larger one is newer
using Rank = std::pair<double, Age>;         // a metric, so that more is better

std::optional<double> MetricOf(const Checkpoint& checkpoint, const std::string& name) {
  const auto found = checkpoint.metrics.find(name);
  if (found == checkpoint.metrics.end() || !std::isfinite(found->second)) return std::nullopt;
  return found->second;
}

template <typename T>
size_t CountAbove(const std::vector<T>& sorted, const T& value) {
  return static_cast<size_t>(sorted.end() - std::upper_bound(sorted.begin(), sorted.end(), value));
}

// What the rules compare with: the durable ones, but for those that are open, for they may be being written anew.
class Durable {
 public:
  Durable(const Policy& policy, const std::vector<Checkpoint>& checkpoints, const std::vector<Verdict>& judged) {
    ranks_.resize(policy.keep_best.size());
    for (size_t i = 0; i < checkpoints.size(); ++i) {
      const Checkpoint& one = checkpoints[i];
      if (!one.durable || one.open || !judged[i].step || !judged[i].reason.empty()) continue;
      const Age age(*judged[i].step, one.time);
      ages_.push_back(age);
      last_time_ = std::max(last_time_.value_or(one.time), one.time);
      for (size_t rule = 0; rule < ranks_.size(); ++rule) {
        const auto metric = MetricOf(one, policy.keep_best[rule].metric);
        if (metric) ranks_[rule].push_back(RankOf(policy.keep_best[rule], *metric, age));
      }
    }
    std::sort(ages_.begin(), ages_.end());
    for (auto& ranks : ranks_) std::sort(ranks.begin(), ranks.end());
  }

  static Rank RankOf(const BestRule& rule, double metric, const Age& age) {
    return {rule.better == Better::kMin ? -metric : metric, age};
  }
  bool empty() const { return ages_.empty(); }
  Age newest() const { return ages_.back(); }
  Timestamp last_time() const { return *last_time_; }
  size_t CountNewer(const Age& age) const { return CountAbove(ages_, age); }
  size_t CountBetter(size_t rule, const Rank& rank) const { return CountAbove(ranks_[rule], rank); }

 private:
  std::vector<Age> ages_;  // sorted
  std::optional<Timestamp> last_time_;
  std::vector<std::vector<Rank>> ranks_;  // by rule; sorted
};

// One rule's word: whether it keeps the checkpoint, and why or why not.
struct Word {
  bool keeps = false;
  std::string reason;
};

Word LastWord(uint64_t count, size_t newer) {
  if (newer < count) return {true, fmt::format("among the last {} (keep-last)", count)};
  return {false, fmt::format("not among the last {} (keep-last)", count)};
}

Word EveryWord(uint64_t every, uint64_t step) {
  if (step % every == 0) return {true, fmt::format("{} divides its step (keep-every)", every)};
  return {false, fmt::format("{} does not divide its step (keep-every)", every)};
}

Word ForWord(std::chrono::seconds keep_for, const Timestamp& time, const Timestamp& now) {
  const Timestamp until = EndOfWait(time, keep_for);
  const std::string word = UtcText(until);
  if (now < until) return {true, fmt::format("it is kept until {} (keep-for)", word)};
  return {false, fmt::format("it was kept until {} (keep-for)", word)};
}

Word BestWord(const Policy& policy, size_t number, const Checkpoint& checkpoint, const Age& age,
              const Durable& durable) {
  const BestRule& rule = policy.keep_best[number];
  const auto metric = MetricOf(checkpoint, rule.metric);
  if (!metric && policy.keep_without_metric) {
    return {true, fmt::format("it has no {} (keep-without-metric)", rule.metric)};
  }
  if (!metric) return {false, fmt::format("it has no {} (keep-best)", rule.metric)};
  if (durable.CountBetter(number, Durable::RankOf(rule, *metric, age)) < rule.count) {
    return {true, fmt::format("among {} (keep-best)", BestRuleText(rule))};
  }
  return {false, fmt::format("not among {} (keep-best)", BestRuleText(rule))};
}

std::vector<Word> WordsOf(const Policy& policy, const Checkpoint& checkpoint, const Age& age, const Durable& durable,
                          Timestamp now) {
  std::vector<Word> words;
  if (policy.keep_last) words.push_back(LastWord(*policy.keep_last, durable.CountNewer(age)));
  if (policy.keep_every) words.push_back(EveryWord(*policy.keep_every, age.first));
  for (size_t rule = 0; rule < policy.keep_best.size(); ++rule) {
    words.push_back(BestWord(policy, rule, checkpoint, age, durable));
  }
  if (policy.keep_for) words.push_back(ForWord(*policy.keep_for, checkpoint.time, now));
  return words;
}

// Of one that takes part.
Verdict VerdictOn(const Policy& policy, const Checkpoint& checkpoint, const Age& age, const Durable& durable,
                  Timestamp now) {
  const auto stays = [&](std::string why) { return Verdict{false, age.first, std::move(why)}; };
  if (durable.empty()) return stays("none is durable yet");
  if (age >= durable.newest()) {
    const bool is_newest = checkpoint.durable && !checkpoint.open;
    return stays(is_newest ? "it is the newest durable one" : "it is not older than the newest durable one");
  }
  if (checkpoint.time >= durable.last_time()) return stays("none that is durable was committed later");
  if (auto why = WhyItStays(checkpoint, now)) return stays(*std::move(why));
  std::string reasons;
  for (Word& word : WordsOf(policy, checkpoint, age, durable, now)) {
    if (word.keeps) return stays(std::move(word.reason));
    reasons += (reasons.empty() ? "" : "; ") + word.reason;
  }
  return {true, age.first, std::move(reasons)};
}

// Steps, and the verdicts on those that take no part.
std::vector<Verdict> FindSteps(const Policy& policy, const StepPattern& pattern,
                               const std::vector<Checkpoint>& checkpoints) {
  std::vector<Verdict> verdicts(checkpoints.size());
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    const auto step = pattern.StepOf(checkpoints[i].name);
    if (!step.ok()) {
      verdicts[i].reason = step.error().message;
    } else if (!*step) {
      verdicts[i].reason = "the pattern does not match its name";
    } else {
      verdicts[i].step = **step;
      if (policy.match.empty() && !checkpoints[i].committed) {
        verdicts[i].reason = "it was not committed, and no --match says that it is a checkpoint";
      }
    }
  }
  return verdicts;
}

std::vector<std::string> NotesOn(const Policy& policy, const std::vector<Checkpoint>& checkpoints,
                                 const std::vector<Verdict>& verdicts) {
  std::vector<std::string> notes;
  std::map<uint64_t, size_t> by_step;
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    if (!verdicts[i].step) continue;
    const auto [found, is_new] = by_step.emplace(*verdicts[i].step, i);
    if (!is_new) {
      notes.push_back(fmt::format("step {} is there twice, as {} and {}: each counts, and the later one is newer",
                                  *verdicts[i].step, checkpoints[found->second].name, checkpoints[i].name));
    }
    for (const BestRule& rule : policy.keep_best) {
      const auto metric = checkpoints[i].metrics.find(rule.metric);
      if (metric == checkpoints[i].metrics.end() || std::isfinite(metric->second)) continue;
      notes.push_back(fmt::format("{} of {} is {}: it is to be a finite number, and counts as missing", rule.metric,
                                  checkpoints[i].name, metric->second));
    }
  }
  return notes;
}

}  // namespace

std::optional<std::string> WhyItStays(const Protection& protection, Timestamp now) {
  if (protection.sealed) return "it is sealed";
  if (protection.pinned) return "it is pinned";
  if (protection.held_until && *protection.held_until > now) {
    return "it is held until " + UtcText(*protection.held_until);
  }
  if (protection.open) return "a process has a file below it open";
  if (!protection.unknown.empty()) return protection.unknown;
  return std::nullopt;
}

Result<Judgement> Judge(const Policy& policy, const std::vector<Checkpoint>& checkpoints, Timestamp now) {
  CAIRNFS_RETURN_IF_ERROR(CheckPolicy(policy));
  CAIRNFS_ASSIGN_OR_RETURN(const StepPattern pattern, StepPattern::Parse(policy.match));
  Judgement judgement;
  judgement.verdicts = FindSteps(policy, pattern, checkpoints);
  judgement.notes = NotesOn(policy, checkpoints, judgement.verdicts);
  const Durable durable(policy, checkpoints, judgement.verdicts);
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    Verdict& verdict = judgement.verdicts[i];
    if (!verdict.step || !verdict.reason.empty()) continue;
    verdict = VerdictOn(policy, checkpoints[i], Age(*verdict.step, checkpoints[i].time), durable, now);
  }
  return judgement;
}

Timestamp EndOfWait(Timestamp begun, std::chrono::seconds time) {
  return {.seconds = std::min(begun.seconds, INT64_MAX - time.count()) + time.count(),
          .nanoseconds = begun.nanoseconds};
}

}  // namespace cairnfs::retention
