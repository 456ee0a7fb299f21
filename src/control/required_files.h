// What must lie below a directory before ranks may commit it (cairnfs commit --require).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "retention/glob.h"

namespace cairnfs::control {

// One thread.
class RequiredFiles {
 public:
  // Each is a pattern of retention/glob.h for the name of a file; after it perhaps "=COUNT", how many are to match.
  // Without a count one must match. And where a name that matches says which of how many it is, as
  // "shard-00003-of-0008.bin" does by the last "NUMBER-of-NUMBER" in it, all of these must: so many names with
  // different first numbers. kInvalidArgument: says which is wrong, and what would be right.
  static Result<RequiredFiles> Parse(const std::vector<std::string>& requirements);

  bool empty() const { return requirements_.empty(); }
  // A file with this name is there, in whatever directory below. Memory: 10,000 numbers at most.
  void Add(std::string_view name);
  // What is missing of those added so far, or that they have too many numbers, for people; empty: nothing.
  std::string Missing() const;

 private:
  struct Requirement {
    std::string text;
    retention::Glob glob;
    std::optional<uint64_t> count;
    uint64_t found = 0;
    std::map<uint64_t, std::set<uint64_t>> parts = {};  // the numbers that are there, by how many there are to be
  };

  std::vector<Requirement> requirements_;
  size_t numbers_ = 0;  // in all of them
};

}  // namespace cairnfs::control
