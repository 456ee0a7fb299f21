// What a host that is not alone knows of a file beside its content: on which record that is based, and what of it is
// this host's own. docs/cluster.md, "The namespace".
//
// Whoever publishes compares the revision of the record that the content is based on. Where another host has published
// since, this host's own changes are laid over what is there (Rebase), and the publish is tried again: so ranges that
// do not overlap all stay.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "fs/extent_map.h"
#include "fs/range_set.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

struct Content;

struct SharedContent {
  struct Changes {
    RangeSet ranges{SIZE_MAX};  // of the extents; none is ever forgotten
    uint64_t size_min = 0;      // the file is at least this long by what this host wrote
    bool size_is_set = false;   // by a truncation: the content's own size counts, whatever others made of it
    bool times_are_set = false;
    bool empty() const { return ranges.empty() && size_min == 0 && !size_is_set && !times_are_set; }
    void Add(const Changes& more);
  };

  uint64_t base_revision = 0;       // of the D record that the extents are based on; 0: there was none
  Changes own;                      // since then, and in no record that is on its way
  Changes publishing;               // in the record that the round is about to publish
  uint64_t session = 0;             // the host's session when it was changed
  uint64_t pending_revision = 0;    // of this host's P key; 0: it has none
  std::vector<meta::Pending> lost;  // as last read: P keys of sessions that are gone
  bool must_reload = false;         // nothing in memory counts any more

  // Whether the size is what this host has set, not the greatest that any host made.
  bool SizeIsSet() const { return own.size_is_set || publishing.size_is_set; }
  bool TimesAreSet() const { return own.times_are_set || publishing.times_are_set; }
  uint64_t SizeMin() const { return std::max(own.size_min, publishing.size_min); }
};

// Takes over what the record says (nullopt: there is none yet), with this host's own changes laid over it. Reads recipe
// pages; on failure the content is as it was. REQUIRES: the content's inode is locked, and `content.shared`.
Status Rebase(Content& content, const std::optional<meta::FileRecord>& record, uint64_t revision,
              store::ChunkStore& chunks);

// The extents of a record, into an empty map.
Status LoadExtents(const meta::FileRecord& record, ExtentMap& extents, store::ChunkStore& chunks);

}  // namespace cairnfs::fs
