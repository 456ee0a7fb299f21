// DirectoryListing: the entries of a directory as they were when it was read from its beginning.
//
// The names lie one behind the other: a listing of a hundred thousand is two blocks of memory. Whoever holds one while
// nobody adds to it may read it on any thread.
#pragma once

#include <cassert>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace cairnfs::fs {

class DirectoryListing {
 public:
  struct Entry {
    const char* name;  // as long as the listing lives
    InodeId inode;
    uint32_t type;         // S_IFMT bits
    uint64_t next_offset;  // cookie of the entry after this one
  };

  void Add(std::string_view name, InodeId inode, uint32_t type) {
    items_.push_back({inode, names_.size(), type});
    names_.append(name).push_back('\0');
  }
  size_t size() const { return items_.size(); }
  // The entry at cookie `offset`: they count from 0. REQUIRES: it is below size().
  Entry At(uint64_t offset) const {
    assert(offset < size());
    const Item& item = items_[offset];
    return {names_.data() + item.name_begin, item.inode, item.type, offset + 1};
  }

 private:
  struct Item {
    InodeId inode;
    uint64_t name_begin;
    uint32_t type;
  };
  std::vector<Item> items_;
  std::string names_;  // each ends with a zero byte
};

}  // namespace cairnfs::fs
