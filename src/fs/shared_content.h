// What a host that is not alone knows of a file beside its content: on which record that is based, and what of it is
// this host's own. docs/cluster/publishing.md.
//
// Whoever publishes compares the revision of the record that the content is based on. Where another host has published
// since, this host's own changes are laid over what is there (Rebase), and the publish is tried again: so ranges that
// do not overlap all stay.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fs/extent_map.h"
#include "fs/publish_state.h"
#include "fs/range_set.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

struct Content;

// How many files of this host have bytes that count as closed and that no close waits for: those of a process that a
// signal killed, stores through mappings, and what is left once no descriptor is. A round in the background publishes
// them. Any thread.
class UnawaitedFiles {
 public:
  using Entry = std::shared_ptr<const char>;
  Entry Enter() const { return counter_; }  // counts while it or a copy of it is kept
  bool empty() const { return counter_.use_count() == 1; }

 private:
  const Entry counter_ = std::make_shared<const char>();
};

struct SharedContent final : PublishState {
  explicit SharedContent(const UnawaitedFiles& unawaited_files) : unawaited_files_(unawaited_files) {}  // outlives it

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
  bool is_in_doubt = false;               // and the store was waited for in vain
  uint64_t session = 0;                   // the host's session when it was changed
  bool published_locally = false;         // the last record of this host waited for this node's disk alone
  bool is_void = false;                   // nothing in memory counts any more

  // Marks of unpublished files (meta::UnpublishedMark).
  bool is_marked = false;                // this host's is in the store, or may be: the next publish takes it away
  unsigned marks_in_doubt = 0;           // of this host, that may be put yet (marks.h)
  bool stays_marked = false;             // but for that one: it publishes what an open has truncated
  bool is_asked_for = false;             // its own close, fsync or unlock asks for all of it since then
  bool is_closed = false;                // a descriptor that wrote was closed since the last publish
  bool has_pages = false;                // stores through a mapping came since then
  UnawaitedFiles::Entry unawaited;       // while there are bytes of which NoteUnawaited tells
  std::optional<std::string> failure;    // why a publish failed since then
  std::vector<meta::Mark> others_marks;  // of other sessions, as last read

  bool MayBeMarked() const { return is_marked || marks_in_doubt > 0; }
  // Whether the size is what this host has set, not the greatest that any host made.
  bool SizeIsSet() const { return own.size_is_set || publishing.size_is_set; }
  bool TimesAreSet() const { return own.times_are_set || publishing.times_are_set; }
  uint64_t SizeMin() const { return std::max(own.size_min, publishing.size_min); }

  void NoteRanges(const RangeSet& ranges) override { own.ranges.Add(ranges); }
  void NoteRange(uint64_t begin, uint64_t end) override { own.ranges.Add(begin, end); }
  void NoteSizeMin(uint64_t size) override { own.size_min = std::max(own.size_min, size); }
  void NoteTruncation(uint64_t size) override;
  void NoteTimes() override { own.times_are_set = true; }
  void NoteEmptiedByOpen() override { stays_marked = true; }
  void NotePages() override {
    has_pages = true;
    NoteUnawaited();
  }
  void NoteClosed() override { is_closed = is_asked_for = true; }
  void NoteAskedFor() override { is_asked_for = true; }
  // Bytes count as closed, and no close waits until they are published.
  void NoteUnawaited() { unawaited = unawaited_files_.Enter(); }
  bool must_reload() const override { return is_void; }
  bool is_shared() const override { return true; }

  void EndPublishing();  // nothing is on its way to be published, whatever became of what was

 private:
  const UnawaitedFiles& unawaited_files_;
};

// Whether the content has bytes that no record has, and that are in none that is on its way.
bool HasUnpublishedBytes(const Content& content);

// Whether these changes leave nothing of the first `size` bytes that the file had before.
bool ReplaceAll(const SharedContent::Changes& changes, uint64_t size);

// Takes over what the record says (nullopt: there is none yet), with this host's own changes laid over it. Reads recipe
// pages; on failure the content is as it was. REQUIRES (unchecked): the content's inode is locked, and its publish
// state is a SharedContent.
Status Rebase(Content& content, const std::optional<meta::FileRecord>& record, uint64_t revision,
              store::ChunkStore& chunks);

// The extents of a record of a file of this size, into an empty map.
Status LoadExtents(const Recipe& recipe, uint64_t size, ExtentMap& extents, store::ChunkStore& chunks);

}  // namespace cairnfs::fs
