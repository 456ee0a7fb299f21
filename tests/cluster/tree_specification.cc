#include "tree_specification.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "tree_state.h"

namespace cairnfs::testing {
namespace {

std::vector<std::string> Components(const std::string& path) {
  std::vector<std::string> names;
  std::istringstream stream(path);
  for (std::string name; std::getline(stream, name, '/');) names.push_back(name);
  return names;
}

std::string LastName(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// Does the operation act on a name in a directory (and not on the inode that the whole path leads to)?
bool ActsOnName(TreeAct act) {
  return act == TreeAct::kMkdir || act == TreeAct::kCreate || act == TreeAct::kUnlink || act == TreeAct::kRmdir ||
         act == TreeAct::kRename;
}

// The last step of one operation on one state.
class Act {
 public:
  Act(const TreeState& before, const RunningState& call, const TreeOperation& operation)
      : before_(before), call_(call), operation_(operation), result_(operation.result) {}

  // The states after it, for its result; for an unknown result all that are possible.
  std::vector<TreeState> After() && {
    switch (operation_.act) {
      case TreeAct::kMkdir:
      case TreeAct::kCreate: Make(); break;
      case TreeAct::kLink: Link(); break;
      case TreeAct::kUnlink: Unlink(); break;
      case TreeAct::kRmdir: Rmdir(); break;
      case TreeAct::kRename: Rename(); break;
      case TreeAct::kReaddir: Readdir(); break;
      default: OnInode(); break;
    }
    if (!result_) after_.push_back(before_);
    return std::move(after_);
  }

 private:
  // Its reason holds: a call that had this error is explained.
  void Allow(int error) {
    if (result_ && result_->error == error && after_.empty()) after_.push_back(before_);
  }
  bool MaySucceed() const { return !result_ || result_->error == 0; }

  const InodeState& parent() const { return before_.inode(call_.at); }
  bool IsDirectory(int inode) const { return inode != kNoInode && before_.inode(inode).is_directory; }
  // May names be added in the directory? It may have been removed since it was looked up.
  bool TakesNames(int directory) {
    if (!IsDirectory(directory)) {
      Allow(ENOTDIR);
      return false;
    }
    if (before_.inode(directory).links > 0) return true;
    Allow(ENOENT);
    Allow(ESTALE);
    return false;
  }

  void Make() {
    std::string name = LastName(operation_.path);
    if (!TakesNames(call_.at)) return;
    if (before_.Lookup(call_.at, name) != kNoInode) return Allow(EEXIST);
    if (!MaySucceed()) return;
    InodeState made;
    made.is_directory = operation_.act == TreeAct::kMkdir;
    made.links = 1;
    made.mode = operation_.mode;
    TreeState after = before_;
    int index = after.Add(made);
    after.inode(call_.at).entries[name] = index;
    if (result_ && !after.Bind(index, result_->inode)) return;
    after_.push_back(std::move(after));
  }

  void Link() {
    std::string name = LastName(operation_.target);
    if (IsDirectory(call_.at)) Allow(EPERM);
    if (before_.inode(call_.at).links == 0) AllowGone();
    if (!TakesNames(call_.target_at)) return;
    if (before_.Lookup(call_.target_at, name) != kNoInode) return Allow(EEXIST);
    if (IsDirectory(call_.at) || before_.inode(call_.at).links == 0 || !MaySucceed()) return;
    TreeState after = before_;
    after.inode(call_.target_at).entries[name] = call_.at;
    after.inode(call_.at).links += 1;
    after_.push_back(std::move(after));
  }

  void AllowGone() {
    Allow(ENOENT);
    Allow(ESTALE);
  }

  void Unlink() {
    std::string name = LastName(operation_.path);
    if (!IsDirectory(call_.at)) return Allow(ENOTDIR);
    int victim = before_.Lookup(call_.at, name);
    if (victim == kNoInode) return AllowGone();
    if (IsDirectory(victim)) return Allow(EISDIR);
    if (!MaySucceed()) return;
    TreeState after = before_;
    after.inode(call_.at).entries.erase(name);
    after.inode(victim).links -= 1;
    after_.push_back(std::move(after));
  }

  void Rmdir() {
    std::string name = LastName(operation_.path);
    if (!IsDirectory(call_.at)) return Allow(ENOTDIR);
    int victim = before_.Lookup(call_.at, name);
    if (victim == kNoInode) return AllowGone();
    if (!IsDirectory(victim)) return Allow(ENOTDIR);
    if (!before_.inode(victim).entries.empty()) return Allow(ENOTEMPTY);
    if (!MaySucceed()) return;
    TreeState after = before_;
    after.inode(call_.at).entries.erase(name);
    after.inode(victim).links = 0;
    after_.push_back(std::move(after));
  }

  void Rename() {
    std::string name = LastName(operation_.path), target_name = LastName(operation_.target);
    if (!IsDirectory(call_.at) || !IsDirectory(call_.target_at)) return Allow(ENOTDIR);
    bool exchange = (operation_.flags & RENAME_EXCHANGE) != 0;
    int source = before_.Lookup(call_.at, name), target = before_.Lookup(call_.target_at, target_name);
    if (source == kNoInode || (exchange && target == kNoInode)) AllowGone();
    if ((operation_.flags & RENAME_NOREPLACE) != 0 && target != kNoInode) return Allow(EEXIST);
    // The kernel itself finds that both names lead to one inode, and does nothing. It looked the source up earlier.
    if (target != kNoInode && target == call_.source && MaySucceed()) after_.push_back(before_);
    bool is_loop = AllowLoops(source, target, exchange);
    if (!exchange) AllowKinds(source, target);
    if (source == kNoInode || (exchange && target == kNoInode) || is_loop || !MaySucceed()) return;
    if (!TakesNames(call_.target_at)) return;
    if (source == target) return void(after_.empty() ? after_.push_back(before_) : void());
    if (!exchange && target != kNoInode && !CanReplace(source, target)) return;
    TreeState after = before_;
    if (exchange) {
      after.inode(call_.at).entries[name] = target;
    } else {
      after.inode(call_.at).entries.erase(name);
      if (target != kNoInode) after.inode(target).links -= 1;
    }
    after.inode(call_.target_at).entries[target_name] = source;
    after_.push_back(std::move(after));
  }

  bool CanReplace(int source, int target) const {
    if (IsDirectory(source) != IsDirectory(target)) return false;
    return before_.inode(target).entries.empty();
  }

  void AllowKinds(int source, int target) {
    if (target == kNoInode) return;
    bool source_is_directory = IsDirectory(source) || IsDirectory(call_.source);
    bool source_is_file = (source != kNoInode && !IsDirectory(source)) || !IsDirectory(call_.source);
    if (IsDirectory(target) && source_is_file) Allow(EISDIR);
    if (!IsDirectory(target) && source_is_directory) Allow(ENOTDIR);
    if (!before_.inode(target).entries.empty()) Allow(ENOTEMPTY);
  }

  // A directory cannot go below itself. True when this one would.
  bool AllowLoops(int source, int target, bool exchange) {
    for (int moved : {source, call_.source}) {
      if (IsDirectory(moved) && before_.IsSelfOrBelow(call_.target_at, moved)) Allow(EINVAL);
    }
    bool source_loops = IsDirectory(source) && before_.IsSelfOrBelow(call_.target_at, source);
    bool target_loops = IsDirectory(target) && before_.IsSelfOrBelow(call_.at, target);
    if (target_loops) Allow(exchange ? EINVAL : ENOTEMPTY);
    return source_loops || target_loops;
  }

  void Readdir() {
    const InodeState& directory = before_.inode(call_.at);
    if (!directory.is_directory) return Allow(ENOTDIR);
    if (directory.links == 0) AllowGone();
    if (!result_ || result_->error != 0) return;
    std::vector<std::string> names;
    for (const auto& [name, child] : directory.entries) names.push_back(name);
    if (names == result_->names) after_.push_back(before_);
  }

  // What acts on the inode that was found.
  void OnInode() {
    const InodeState& inode = before_.inode(call_.at);
    if (inode.links == 0) AllowGone();
    bool is_data =
        operation_.act == TreeAct::kWrite || operation_.act == TreeAct::kRead || operation_.act == TreeAct::kTruncate;
    if (inode.is_directory && is_data) return Allow(EISDIR);
    if (operation_.act == TreeAct::kGetxattr && inode.xattr == 0) return Allow(ENODATA);
    if (!MaySucceed()) return;
    TreeState after = before_;
    if (Change(after, after.inode(call_.at))) after_.push_back(std::move(after));
  }

  bool Change(TreeState& state, InodeState& inode) {
    switch (operation_.act) {
      case TreeAct::kWrite: {
        int64_t end = operation_.first_slot + operation_.slots;
        for (int64_t slot = operation_.first_slot; slot < end; ++slot) {
          inode.tokens[static_cast<size_t>(slot)] = operation_.token;
        }
        inode.slots = std::max(inode.slots, end);
        return true;
      }
      case TreeAct::kTruncate:
        for (size_t slot = static_cast<size_t>(operation_.slots); slot < kSlots; ++slot) inode.tokens[slot] = 0;
        inode.slots = operation_.slots;
        return true;
      case TreeAct::kChmod: inode.mode = operation_.mode; return true;
      case TreeAct::kSetxattr: inode.xattr = operation_.token; return true;
      case TreeAct::kGetxattr: return !result_ || result_->token == inode.xattr;
      case TreeAct::kRead:
        return !result_ ||
               std::vector<int64_t>(inode.tokens.begin(), inode.tokens.begin() + inode.slots) == result_->tokens;
      case TreeAct::kStat: return !result_ || StatIs(state, inode);
      default: return false;
    }
  }

  bool StatIs(TreeState& state, const InodeState& inode) {
    if (result_->mode != inode.mode || !state.Bind(call_.at, result_->inode)) return false;
    return inode.is_directory || (result_->links == inode.links && result_->slots == inode.slots);
  }

  const TreeState& before_;
  const RunningState& call_;
  const TreeOperation& operation_;
  const std::optional<TreeResult>& result_;
  std::vector<TreeState> after_;
};

const char* NameOf(TreeAct act) {
  static const char* const kNames[] = {"mkdir",   "create", "link", "unlink",   "rmdir", "rename",   "stat",
                                       "readdir", "write",  "read", "truncate", "chmod", "setxattr", "getxattr"};
  return kNames[static_cast<size_t>(act)];
}

std::string DescribeResult(const TreeOperation& operation) {
  if (!operation.result) return "?";
  const TreeResult& result = *operation.result;
  if (result.error != 0) return strerrorname_np(result.error) != nullptr ? strerrorname_np(result.error) : "?";
  switch (operation.act) {
    case TreeAct::kCreate: return fmt::format("inode {}", result.inode);
    case TreeAct::kStat:
      return fmt::format("inode {} links {} slots {} mode {:o}", result.inode, result.links, result.slots, result.mode);
    case TreeAct::kReaddir: return fmt::format("{{{}}}", fmt::join(result.names, " "));
    case TreeAct::kRead: return fmt::format("[{}]", fmt::join(result.tokens, " "));
    case TreeAct::kGetxattr: return fmt::format("{}", result.token);
    default: return "ok";
  }
}

}  // namespace

TreeSpecification::TreeSpecification(std::vector<TreeOperation> operations) : operations_(std::move(operations)) {
  for (size_t i = 0; i < operations_.size(); ++i) {
    steps_.push_back(StepsOf(operations_[i]));
    for (size_t step = 0; step < steps_.back().size(); ++step) {
      places_.push_back({i, step});
      calls_.push_back(operations_[i].interval);
    }
  }
}

std::vector<TreeSpecification::Micro> TreeSpecification::StepsOf(const TreeOperation& operation) {
  std::vector<Micro> steps;
  std::vector<std::string> path = Components(operation.path), target = Components(operation.target);
  bool all_parents = ActsOnName(operation.act);
  assert(!all_parents || !path.empty());
  if (all_parents) path.pop_back();
  for (size_t i = 0; i < path.size(); ++i) {
    steps.push_back({Micro::Kind::kWalk, path[i], all_parents || i + 1 < path.size()});
  }
  if (!target.empty()) target.pop_back();
  for (const std::string& name : target) steps.push_back({Micro::Kind::kWalkTarget, name, true});
  if (operation.act == TreeAct::kRename) steps.push_back({Micro::Kind::kNoteSource, LastName(operation.path), false});
  steps.push_back({Micro::Kind::kAct, "", false});
  return steps;
}

std::string TreeSpecification::Initial() const { return TreeState::New().Encode(); }

std::vector<std::string> TreeSpecification::Step(const std::string& encoded, size_t call) const {
  const Place& place = places_[call];
  const TreeOperation& operation = operations_[place.operation];
  const std::vector<Micro>& steps = steps_[place.operation];
  const Micro& step = steps[place.step];
  TreeState state = TreeState::Decode(encoded);
  RunningState& running = state.Running(place.operation);
  if (running.steps_done != place.step) return {};
  running.steps_done += 1;
  bool is_last = place.step + 1 == steps.size();

  std::vector<TreeState> after;
  if (running.finished) {
    after.push_back(state);
  } else if (step.kind == Micro::Kind::kAct) {
    RunningState copy = running;
    after = Act(state, copy, operation).After();
  } else if (LookUp(state, running, step, operation)) {
    after.push_back(state);
  }
  std::vector<std::string> results;
  for (TreeState& next : after) {
    if (is_last) next.EndRunning(place.operation);
    results.push_back(next.Encode());
  }
  return results;
}

bool TreeSpecification::LookUp(const TreeState& state, RunningState& call, const Micro& step,
                               const TreeOperation& operation) {
  int& at = step.kind == Micro::Kind::kWalk         ? call.at
            : step.kind == Micro::Kind::kWalkTarget ? call.target_at
                                                    : call.source;
  int directory = step.kind == Micro::Kind::kNoteSource ? call.at : at;
  int found = state.inode(directory).is_directory ? state.Lookup(directory, step.name) : kNoInode;
  int error = 0;
  if (found == kNoInode) {
    error = ENOENT;
  } else if (step.is_parent && !state.inode(found).is_directory) {
    error = ENOTDIR;
  } else {
    at = found;
  }
  if (error == 0) return true;
  call.finished = true;
  return !operation.result || operation.result->error == error;
}

std::string TreeSpecification::Describe(size_t call) const {
  const Place& place = places_[call];
  std::string text = testing::Describe(operations_[place.operation]);
  const Micro& step = steps_[place.operation][place.step];
  if (step.kind == Micro::Kind::kAct) return text;
  return fmt::format("{} (looks up {})", text, step.name);
}

std::string Describe(const TreeOperation& operation) {
  std::string text =
      fmt::format("{}: {} {}", operation.client, NameOf(operation.act), operation.path.empty() ? "." : operation.path);
  switch (operation.act) {
    case TreeAct::kRename:
      text += fmt::format(" -> {}{}{}", operation.target, operation.flags & RENAME_NOREPLACE ? " NOREPLACE" : "",
                          operation.flags & RENAME_EXCHANGE ? " EXCHANGE" : "");
      break;
    case TreeAct::kLink: text += " -> " + operation.target; break;
    case TreeAct::kWrite:
      text += fmt::format(" slots {}+{} token {}", operation.first_slot, operation.slots, operation.token);
      break;
    case TreeAct::kTruncate: text += fmt::format(" to {} slots", operation.slots); break;
    case TreeAct::kChmod: text += fmt::format(" {:o}", operation.mode); break;
    case TreeAct::kSetxattr: text += fmt::format(" {}", operation.token); break;
    default: break;
  }
  return text + " = " + DescribeResult(operation);
}

}  // namespace cairnfs::testing
