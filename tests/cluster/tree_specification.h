// What namespace operations and whole-file reads and writes of several hosts mean: the sequential specification of a
// small directory tree, for CheckLinearizability.
//
// A call on a path is not one moment even on a local filesystem: the kernel looks each component up, and then asks the
// filesystem to act on what it found; another host may act in between. Each call is therefore made of steps, each of
// which happens at a moment of its own within the call, in order: one per component that is looked up, one for the act.
// What a step found is kept in the state until the call is done. For the same reason an error is allowed when its own
// reason holds at the act, whatever other reasons hold: the kernel checks these at different moments.
//
// The content of a file is kSlots slots; each holds zeros or the token of one write. A file is a whole number of slots.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "linearizability.h"

namespace cairnfs::testing {

constexpr int kSlots = 4;

class TreeState;
struct RunningState;

enum class TreeAct {
  kMkdir,     // path
  kCreate,    // path: O_CREAT | O_EXCL; the result may name the inode
  kLink,      // path, target
  kUnlink,    // path
  kRmdir,     // path
  kRename,    // path, target, flags of renameat2
  kStat,      // path: inode, links, slots, mode
  kReaddir,   // path: names
  kWrite,     // path, first slot, slots, token: open, one write, close
  kRead,      // path: open, read all, close: the tokens
  kTruncate,  // path, slots
  kChmod,     // path, mode
  kSetxattr,  // path, token
  kGetxattr,  // path: token
};

struct TreeResult {
  int error = 0;      // errno; when it is not 0 nothing below is set
  int64_t inode = 0;  // 0: not told
  int64_t links = 0;  // of files; that of a directory is not compared
  int64_t slots = 0;  // of files
  int64_t mode = 0;
  int64_t token = 0;               // of an xattr
  std::vector<std::string> names;  // sorted
  // One per slot of the file; -1: neither zeros nor what some write put there, which nothing explains.
  std::vector<int64_t> tokens;
};

struct TreeOperation {
  TreeAct act = TreeAct::kStat;
  std::string path, target;  // relative to the root of the round; "" is the root itself
  unsigned flags = 0;
  int64_t first_slot = 0, slots = 0;
  int64_t token = 0;  // not 0; no two writes of a round have the same
  int64_t mode = 0;
  CallInterval interval;
  std::optional<TreeResult> result;  // none: nobody knows whether it took effect
  std::string client;                // for the report
};

class TreeSpecification final : public Specification {
 public:
  explicit TreeSpecification(std::vector<TreeOperation> operations);

  // The steps of all operations, as calls for CheckLinearizability.
  const std::vector<CallInterval>& calls() const { return calls_; }

  std::string Initial() const override;
  std::vector<std::string> Step(const std::string& state, size_t call) const override;
  std::string Describe(size_t call) const override;

 private:
  struct Micro {
    enum class Kind { kWalk, kWalkTarget, kNoteSource, kAct } kind;
    std::string name;        // the component
    bool is_parent = false;  // what it leads to must be a directory
  };
  struct Place {
    size_t operation = 0;
    size_t step = 0;
  };
  // One look-up of `call`; an error ends it. False: its result is not what the look-up leads to.
  static bool LookUp(const TreeState& state, RunningState& call, const Micro& step, const TreeOperation& operation);
  static std::vector<Micro> StepsOf(const TreeOperation& operation);

  std::vector<TreeOperation> operations_;
  std::vector<std::vector<Micro>> steps_;  // of each operation
  std::vector<Place> places_;              // of each call
  std::vector<CallInterval> calls_;
};

// "rename a -> d/b = ENOENT"
std::string Describe(const TreeOperation& operation);

}  // namespace cairnfs::testing
