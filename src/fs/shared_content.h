// What a host among several knows of a file beside its content: the record that the content is based on, and which
// changes are this host's own. docs/cluster/publishing.md.
//
// A publish compares the revision of that record. If another host has published since, this host's own changes are laid
// over the newer record (Rebase), and the publish is tried again. So ranges that do not overlap all stay.
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

// Counts the files of this host with bytes that count as closed and that no close waits for: bytes of a process that a
// signal killed, stores through mappings, and what is left when the last descriptor is gone. A round in the background
// publishes them. Any thread.
class UnawaitedFiles {
 public:
  using Entry = std::shared_ptr<const char>;
  Entry Enter() const { return counter_; }  // the file counts while it keeps this
  bool empty() const { return counter_.use_count() == 1; }

 private:
  const Entry counter_ = std::make_shared<const char>();
};

struct SharedContent final : PublishState {
  explicit SharedContent(const UnawaitedFiles& unawaited_files) : unawaited_files_(unawaited_files) {}  // outlives it

  struct Changes {
    RangeSet ranges{SIZE_MAX};  // of the extents; none is ever forgotten
    uint64_t size_min = 0;      // the file is at least this long by what this host wrote
    bool size_is_set = false;   // a truncation set the size: the content's counts, whatever others wrote
    bool times_are_set = false;
    bool empty() const { return ranges.empty() && size_min == 0 && !size_is_set && !times_are_set; }
    void Add(const Changes& more);
  };

  uint64_t base_revision = 0;             // of the D record that the extents are based on; 0: there was none
  Changes own;                            // since then, and not in `publishing`
  Changes publishing;                     // in the record that the round is about to publish
  std::vector<Digest> publishing_chunks;  // of that record; the round has their pins
  bool is_sent = false;                   // that record was sent, and there is no answer yet
  bool is_in_doubt = false;               // the wait for the answer ended without one
  uint64_t session = 0;                   // the host's session when it was changed
  bool published_locally = false;         // this host published the file last, at level `local`
  bool is_void = false;                   // nothing in memory counts any more
  bool must_compare = false;              // what the base names may be collected, if another host has replaced it
  uint64_t compared_revision = 0;         // of the base, when that was last found to be the store's in this epoch

  std::optional<Kills> unpublished_kills;  // what the changes that are not published take away

  // Marks of unpublished files (meta::UnpublishedMark).
  bool is_marked = false;                // this host's mark is, or may be, in the store: the next publish takes it away
  unsigned marks_in_doubt = 0;           // marks of this host that may still arrive there (marks.h)
  bool stays_marked = false;             // the next publish leaves the mark: it publishes an O_TRUNC
  bool is_asked_for = false;             // a close, fsync or unlock has asked for all of it since the last publish
  bool is_closed = false;                // a descriptor that wrote was closed since the last publish
  bool has_pages = false;                // stores through a mapping came since the last publish
  UnawaitedFiles::Entry unawaited;       // set while it has bytes that no close waits for
  std::optional<std::string> failure;    // of the last publish, if it failed
  std::vector<meta::Mark> others_marks;  // of other sessions, as last read

  bool MayBeMarked() const { return is_marked || marks_in_doubt > 0; }
  // Whether this host set the size by a truncation. If not, the greatest size that any host made counts.
  bool SizeIsSet() const { return own.size_is_set || publishing.size_is_set; }
  bool TimesAreSet() const { return own.times_are_set || publishing.times_are_set; }
  uint64_t SizeMin() const { return std::max(own.size_min, publishing.size_min); }

  void NoteRanges(const RangeSet& ranges) override { own.ranges.Add(ranges); }
  void NoteRange(uint64_t begin, uint64_t end) override { own.ranges.Add(begin, end); }
  void NoteSizeMin(uint64_t size) override { own.size_min = std::max(own.size_min, size); }
  void NoteTruncation(uint64_t size) override;
  void NoteTimes() override { own.times_are_set = true; }
  void NoteKills(Kills what) override { unpublished_kills = std::max(unpublished_kills.value_or(what), what); }
  std::optional<Kills> kills() const override { return unpublished_kills; }
  void NoteEmptiedByOpen() override { stays_marked = true; }
  void NotePages() override {
    has_pages = true;
    NoteUnawaited();
  }
  void NoteClosed() override { is_closed = is_asked_for = true; }
  void NoteAskedFor() override { is_asked_for = true; }
  // The file has bytes that count as closed and that no close waits for.
  void NoteUnawaited() { unawaited = unawaited_files_.Enter(); }
  bool NoteUnreadablePage() override {
    if (compared_revision == base_revision) return false;
    return must_compare = true;
  }
  bool must_reload() const override { return is_void; }
  bool is_shared() const override { return true; }

  void EndPublishing();  // no publish of the file is under way any longer, however it ended

 private:
  const UnawaitedFiles& unawaited_files_;
};

// Whether the content has bytes that are in no record, neither published nor being published.
bool HasUnpublishedBytes(const Content& content);

// Whether these changes replace all of the first `size` bytes of the file.
bool ReplaceAll(const SharedContent::Changes& changes, uint64_t size);

// Bases the content on this record (nullopt: there is none yet), and lays this host's own changes over it. Reads recipe
// pages. On failure the content is unchanged. REQUIRES (unchecked): the content's inode is locked, and its publish
// state is a SharedContent.
Status Rebase(Content& content, const std::optional<meta::FileRecord>& record, uint64_t revision,
              store::ChunkStore& chunks);

// The extents of a record of a file of this size, into an empty map.
Status LoadExtents(const Recipe& recipe, uint64_t size, ExtentMap& extents, store::ChunkStore& chunks);

}  // namespace cairnfs::fs
