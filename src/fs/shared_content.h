// What a host that is not alone knows of a file beside its content: on which record that is based, and what of it is
// this host's own. docs/cluster/publishing.md.
//
// Whoever publishes compares the revision of the record that the content is based on. Where another host has published
// since, this host's own changes are laid over what is there (Rebase), and the publish is tried again: so ranges that
// do not overlap all stay.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fs/extent_map.h"
#include "fs/range_set.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

struct Content;

// Bytes that were closed under a session that is gone, and are lost: told by that node's P key, which a later session
// of the node may have put since. The key stays until all of them were written again, or cut off.
struct LostBytes {
  std::string node;
  uint64_t revision = 0;  // of the key
  uint64_t session = 0;   // that is gone
  uint64_t size = 0;
  RangeSet ranges{SIZE_MAX};  // empty: size or times alone were lost
  bool is_nothing = false;    // the key is left over, and goes with the next publish

  // nullopt: the record tells of none, and whoever put it takes it away. `lives`: so does the session that put it.
  static std::optional<LostBytes> Of(const meta::Pending& pending, bool lives);
  // The record that tells of them alone.
  meta::PendingRecord Record() const;
  // Makes one of a later session of the node tell of them too.
  void AddTo(meta::PendingRecord& record) const;
};

// What a publish does to a P key, which goes where nothing is left of what it told.
struct PendingChange {
  std::string node;
  uint64_t revision = 0;                            // compared
  std::optional<LostBytes> left = {};               // of lost bytes
  std::optional<meta::PendingRecord> pending = {};  // of bytes that this host has closed
};

// A put of this host's P key that may have run, or may run yet.
struct UnansweredPut {
  kv::Transaction transaction;  // tells what became of it when it is committed again
  meta::PendingRecord record;
};

struct SharedContent {
  struct Changes {
    RangeSet ranges{SIZE_MAX};  // of the extents; none is ever forgotten
    uint64_t size_min = 0;      // the file is at least this long by what this host wrote
    bool size_is_set = false;   // by a truncation: the content's own size counts, whatever others made of it
    bool times_are_set = false;
    bool empty() const { return ranges.empty() && size_min == 0 && !size_is_set && !times_are_set; }
    void Add(const Changes& more);
  };

  uint64_t base_revision = 0;             // of the D record that the extents are based on; 0: there was none
  Changes own;                            // since then, and in no record that is on its way
  Changes publishing;                     // in the record that the round is about to publish
  std::vector<Digest> publishing_chunks;  // that were put for it: the round has their pins
  bool is_sent = false;                   // that has been sent, and there is no answer yet
  bool is_unanswered = false;             // and the store was waited for in vain
  uint64_t session = 0;                   // the host's session when it was changed
  uint64_t pending_revision = 0;          // of this host's P key, if it is of this session; 0: it has none
  meta::PendingRecord told;               // what that key tells
  std::vector<LostBytes> lost;            // as last read: what P keys tell
  bool published_locally = false;         // the last record of this host waited for this node's disk alone
  bool must_reload = false;               // nothing in memory counts any more
  // Puts of this host's P key, of which there is one at a time, and none while a publish is sent: each tells all that
  // was closed before it began.
  uint64_t puts_begun = 0;
  uint64_t put_ended = 0;          // the number of the last that was made, or failed for good
  std::optional<Error> put_error;  // why that failed
  std::vector<UnansweredPut> unanswered_puts;

  // Whether the size is what this host has set, not the greatest that any host made.
  bool SizeIsSet() const { return own.size_is_set || publishing.size_is_set; }
  bool TimesAreSet() const { return own.times_are_set || publishing.times_are_set; }
  uint64_t SizeMin() const { return std::max(own.size_min, publishing.size_min); }

  // What the publish of `publishing` does to P keys. `pending`: what that of `self` is to tell of closed bytes then.
  std::vector<PendingChange> PendingChanges(const std::string& self,
                                            const std::optional<meta::PendingRecord>& pending) const;
  // It was published at this revision.
  void Apply(const std::string& self, const std::vector<PendingChange>& changes, uint64_t revision);
  // This host's P key was put at this revision, with what was known as lost of it.
  void NotePut(const std::string& self, uint64_t revision, const meta::PendingRecord& record);
  // What P key `node` tells as lost; null: nothing.
  const LostBytes* LostOf(const std::string& node) const;
  void EndPublishing();  // nothing is on its way to be published, whatever became of what was
};

// Compare and write of the change.
void AddPendingChange(kv::Transaction& transaction, InodeId inode, const PendingChange& change);

// Where bytes lie that no record has yet, for a P key.
std::vector<meta::PendingRecord::Range> UnpublishedRanges(const Content& content);
// What this host's P key tells that is in no record either once `publishing` is published in one of this size; nullopt:
// nothing.
std::optional<meta::PendingRecord> StaysPending(const Content& content, uint64_t published_size);
// At most kRangesMax of them: those closest to each other as one.
std::vector<meta::PendingRecord::Range> FewRanges(const RangeSet& ranges);

// Takes over what the record says (nullopt: there is none yet), with this host's own changes laid over it. Reads recipe
// pages; on failure the content is as it was. REQUIRES: the content's inode is locked, and `content.shared`.
Status Rebase(Content& content, const std::optional<meta::FileRecord>& record, uint64_t revision,
              store::ChunkStore& chunks);

// The extents of a record, into an empty map.
Status LoadExtents(const meta::FileRecord& record, ExtentMap& extents, store::ChunkStore& chunks);

}  // namespace cairnfs::fs
