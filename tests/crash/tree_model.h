// The tree of names that a writer's history makes, and the tree that is really there, in one comparable form.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "history.h"

namespace cairnfs::testing {

// Path -> what stands there: type, mode, links, target, xattrs. Contents are compared elsewhere.
using TreeLines = std::map<std::string, std::string>;

class TreeModel {
 public:
  // REQUIRES: IsName(record.step), and that the operation was possible.
  void Apply(const Record& record);
  TreeLines Lines() const;
  std::map<std::string, int> Files() const;  // path -> file

 private:
  struct Node {
    char type = 'f';  // f, d, l
    uint32_t mode = 0;
    int file = kNoFile;
    unsigned links = 1;
    std::string target;
    std::map<std::string, std::string> xattrs;
  };
  void Drop(const std::string& path);
  // Sorted by path, so that what lies below a directory follows it.
  std::map<std::string, std::shared_ptr<Node>> nodes_;
};

TreeLines ReadTree(const std::string& root);
// In words, a few lines at most.
std::string Difference(const TreeLines& expected, const TreeLines& found);

}  // namespace cairnfs::testing
