#include "worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <deque>

#include "generator.h"

namespace cairnfs::testing {
namespace {

// One write(2), so that lines of several processes do not mix.
void Print(const std::string& text) {
  if (write(STDOUT_FILENO, text.data(), text.size()) < 0) abort();
}

bool IsTogether(Kind kind) { return kind >= Kind::kSharedAppend; }

bool ChangesNames(Kind kind) { return (kind >= Kind::kRename && kind <= Kind::kRemoveTree) || kind == Kind::kOpen; }

std::string ParentOf(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

class Worker {
 public:
  Worker(const WorkerOptions& options, Totals& totals)
      : options_(options),
        totals_(totals),
        plain_(options.plain + Subtree(), options.plain + "/shared", false, RoleOf(totals.plain_shared)),
        mount_(options.mount + Subtree(), options.mount + "/shared", !options.control, RoleOf(totals.mount_shared)),
        generator_(options.seed, plain_),
        random_(MixBits(options.seed)) {}

  bool Run() {
    for (step_ = 0; step_ < options_.operations && mismatches_ < options_.mismatches_max; ++step_) {
      if (step_ % 100 == 0) umask(random_.Pick(std::vector<mode_t>{022, 022, 0, 002, 027}));
      Step(generator_.Next());
      if ((step_ + 1) % options_.compare_every == 0) {
        Findings findings = CompareTrees(plain_.root_fd(), mount_.root_fd(), ".");
        if (!findings.empty()) Report("whole tree", findings);
      }
    }
    umask(022);
    return mismatches_ == 0;
  }

 private:
  std::string Subtree() const { return "/w" + std::to_string(options_.worker); }
  SharedRole RoleOf(SharedTotals& totals) const {
    return SharedRole{options_.worker, options_.worker_count, options_.phase, &totals};
  }

  void Step(const Operation& operation) {
    std::string text = fmt::format("{} {}", step_, operation.Describe());
    if (options_.verbose) Print(text + "\n");
    history_.push_back(text);
    if (history_.size() > 12) history_.pop_front();
    Outcome expected = plain_.Execute(operation);
    Outcome found = mount_.Execute(operation);
    totals_.tried[static_cast<size_t>(operation.kind)]++;
    if (expected.result >= 0) totals_.succeeded[static_cast<size_t>(operation.kind)]++;
    history_.back() += expected.result < 0 ? std::string(" = ") + strerrorname_np(expected.error)
                                           : fmt::format(" = {}", expected.result);
    Findings findings;
    if (!(expected == found)) {
      findings.push_back(fmt::format("outcome: {}\n    instead of: {}", found.Describe(), expected.Describe()));
    } else if (!IsTogether(operation.kind)) {
      findings = CompareAfter(operation);
    }
    if (!findings.empty()) Report(operation.Describe(), findings);
  }

  // What the operation touched, on both sides.
  Findings CompareAfter(const Operation& operation) {
    Findings findings;
    auto add = [&](const Findings& more) { findings.insert(findings.end(), more.begin(), more.end()); };
    bool whole = step_ % 16 == 0;
    int plain = plain_.root_fd(), mount = mount_.root_fd();
    bool a_is_path = !operation.a.empty() && operation.kind != Kind::kSymlink && operation.kind != Kind::kLongName;
    bool b_is_path = !operation.b.empty() && !IsXattr(operation.kind);
    if (a_is_path) add(CompareEntry(plain, mount, operation.a, operation.offset, whole));
    if (b_is_path) add(CompareEntry(plain, mount, operation.b, operation.offset, whole));
    if (ChangesNames(operation.kind) && step_ % 3 == 0) {
      for (const std::string& path : {operation.a, operation.b}) {
        std::string parent = ParentOf(path);
        if (ListNames(plain, parent) != ListNames(mount, parent))
          findings.push_back(parent + ": other names are listed");
      }
    }
    add(CompareDescriptors(plain_.slot_fd(operation.slot), mount_.slot_fd(operation.slot), operation.offset));
    if (operation.slot2 != operation.slot) {
      add(CompareDescriptors(plain_.slot_fd(operation.slot2), mount_.slot_fd(operation.slot2), operation.offset2));
    }
    return findings;
  }

  static bool IsXattr(Kind kind) { return kind >= Kind::kChmod && kind <= Kind::kStat; }

  // Prints the findings, and makes both sides empty and equal again so that later ones mean something.
  void Report(const std::string& where, const Findings& findings) {
    std::string text = fmt::format("\nMISMATCH in worker {} of phase {} at step {}: {}\n", options_.worker,
                                   options_.phase, step_, where);
    for (const std::string& finding : findings) text += "  " + finding + "\n";
    text += "  The steps before:\n";
    for (const std::string& step : history_) text += "    " + step + "\n";
    Print(text);
    ++mismatches_;
    totals_.mismatches++;
    for (World* world : {&plain_, &mount_}) {
      world->CloseSlots();
      for (const std::string& name : ListNames(world->root_fd(), ".")) {
        Operation removal;
        removal.kind = Kind::kRemoveTree;
        removal.a = name.substr(0, name.rfind('/'));
        world->Execute(removal);
      }
    }
    generator_.Forget();
  }

  const WorkerOptions& options_;
  Totals& totals_;
  World plain_, mount_;
  Generator generator_;
  Random random_;
  uint64_t step_ = 0;
  unsigned mismatches_ = 0;
  std::deque<std::string> history_;
};

}  // namespace

bool RunWorker(const WorkerOptions& options, Totals& totals) { return Worker(options, totals).Run(); }

}  // namespace cairnfs::testing
