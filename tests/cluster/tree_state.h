// The state of TreeSpecification: inodes, and how far the calls have come that are under way.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tree_specification.h"

namespace cairnfs::testing {

constexpr int kNoInode = -1;
constexpr int kRoot = 0;

struct InodeState {
  bool is_directory = false;
  int64_t number = 0;  // the inode number as the calls named it; 0: none has yet
  int64_t links = 0;   // a directory has 1, and 0 when it was removed
  int64_t slots = 0;
  int64_t mode = 0;
  int64_t xattr = 0;  // its token; 0: none
  std::array<int64_t, kSlots> tokens{};
  std::map<std::string, int> entries;
};

// A call of which some steps, and not all, were carried out.
struct RunningState {
  size_t operation = 0;
  size_t steps_done = 0;
  int at = kRoot;         // where the walk of its path stands
  int target_at = kRoot;  // and that of its target
  int source = kNoInode;  // what a rename found under its old name
  bool finished = false;  // an error ended it; its other steps do nothing
};

class TreeState {
 public:
  static TreeState New();
  static TreeState Decode(const std::string& bytes);
  // Inodes that nothing leads to are left out, the others numbered in the order of names: equal trees, equal bytes.
  std::string Encode() const;

  InodeState& inode(int index) { return inodes_[static_cast<size_t>(index)]; }
  const InodeState& inode(int index) const { return inodes_[static_cast<size_t>(index)]; }
  // The new inode's index. References to inodes are invalid afterwards.
  int Add(InodeState inode);
  int Lookup(int directory, const std::string& name) const;  // kNoInode: not there
  bool IsSelfOrBelow(int inode, int ancestor) const;
  // True when the inode has that number, or had none and has it now.
  bool Bind(int index, int64_t number);

  // That of the operation; made when it has none.
  RunningState& Running(size_t operation);
  void EndRunning(size_t operation);

 private:
  std::vector<InodeState> inodes_;
  std::vector<RunningState> running_;  // sorted by operation
};

}  // namespace cairnfs::testing
