#include "base/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/comma_list.h"

namespace cairnfs {
namespace {

std::vector<Failpoint*>& Registry() {
  static std::vector<Failpoint*> registry;
  return registry;
}

}  // namespace

std::atomic<bool> Failpoint::any_armed{false};

Failpoint::Failpoint(const char* name, Kind kind) : name_(name), kind_(kind) { Registry().push_back(this); }

std::vector<const Failpoint*> Failpoint::All() {
  std::vector<const Failpoint*> all(Registry().begin(), Registry().end());
  std::sort(all.begin(), all.end(), [](const Failpoint* a, const Failpoint* b) {
    return std::string_view(a->name()) < std::string_view(b->name());
  });
  return all;
}

bool Failpoint::PassSlow() {
  Action action = action_.load(std::memory_order_relaxed);
  if (action == Action::kNone) return false;
  if (passings_left_.fetch_sub(1, std::memory_order_relaxed) > 1) return false;
  if (action == Action::kSkip) return true;
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

Status Failpoint::Arm(std::string_view spec) {
  for (std::string_view item : SplitAtCommas(spec)) {
    size_t equals = item.find('=');
    std::string_view name = item.substr(0, equals);
    std::string_view action = equals == std::string_view::npos ? std::string_view{} : item.substr(equals + 1);
    int64_t count = 1;
    if (size_t at = action.find('@'); at != std::string_view::npos) {
      std::string_view digits = action.substr(at + 1);
      auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
      if (code != std::errc{} || end != digits.data() + digits.size() || count < 1) {
        return MakeError(ErrorCode::kInvalidArgument,
                         "failpoint '" + std::string(item) + "': the count after @ must be a positive number");
      }
      action = action.substr(0, at);
    }
    if (action != "kill" && action != "skip") {
      return MakeError(ErrorCode::kInvalidArgument,
                       "failpoint '" + std::string(item) + "': use name=kill[@N] or name=skip[@N]");
    }
    auto& registry = Registry();
    auto found =
        std::find_if(registry.begin(), registry.end(), [&](Failpoint* point) { return name == point->name(); });
    if (found == registry.end()) {
      std::string message = "no failpoint '" + std::string(name) + "'; there are:";
      for (const Failpoint* point : All()) message += std::string(" ") + point->name();
      return MakeError(ErrorCode::kInvalidArgument, message);
    }
    (*found)->passings_left_.store(count);
    (*found)->action_.store(action == "kill" ? Action::kKill : Action::kSkip);
    any_armed.store(true);
  }
  return {};
}

}  // namespace cairnfs
