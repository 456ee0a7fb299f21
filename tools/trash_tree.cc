#include "trash_tree.h"

#include <map>
#include <set>
#include <string>

namespace cairnfs::tools {

TrashTree TreeBelow(const std::vector<control::TrashEntry>& entries, uint64_t directory) {
  // By the directory that they lay in, and there by name.
  std::map<uint64_t, std::map<std::string, const control::TrashEntry*>> places;
  std::map<uint64_t, uint64_t> replaced;  // how many, in each directory
  for (const control::TrashEntry& entry : entries) {
    std::string name = entry.path().substr(entry.path().rfind('/') + 1);
    if (name.empty()) name = "/" + std::to_string(entry.id());  // it is not known, and none of the others
    const auto [place, is_first] = places[entry.parent()].insert_or_assign(name, &entry);
    if (!is_first) ++replaced[entry.parent()];
  }
  TrashTree tree;
  std::set<uint64_t> visited{directory};
  std::vector<uint64_t> directories{directory};  // grows
  for (size_t i = 0; i < directories.size(); ++i) {
    tree.replaced += replaced[directories[i]];
    for (const auto& [name, entry] : places[directories[i]]) {
      tree.below.push_back(*entry);
      if (entry->type() == "directory" && visited.insert(entry->id()).second) directories.push_back(entry->id());
    }
  }
  return tree;
}

}  // namespace cairnfs::tools
