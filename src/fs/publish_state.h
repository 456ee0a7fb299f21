// PublishState: what is to be published of a file, beside its bytes. A host alone publishes whole records and needs no
// more than this; SharedContent notes, for a file that other hosts may change too, what is this host's own.
#pragma once

#include <cstdint>
#include <optional>

#include "fs/range_set.h"

namespace cairnfs::fs {

// What a change of the content takes away: capabilities, whoever makes it; and set-id bits, unless its maker may leave
// them. The kernel knows that of some changes, and of others only who makes them.
enum class Kills { kCapability, kSetIdToo };

// All functions: with the inode's lock held.
class PublishState {
 public:
  virtual ~PublishState() = default;
  // What this host changed: bytes of the file, its size (at least, or exactly, so much), its times.
  virtual void NoteRanges(const RangeSet& /*ranges*/) {}
  virtual void NoteRange(uint64_t /*begin*/, uint64_t /*end*/) {}
  virtual void NoteSizeMin(uint64_t /*size*/) {}
  virtual void NoteTruncation(uint64_t /*size*/) {}
  virtual void NoteTimes() {}
  virtual void NoteKills(Kills /*what*/) {}
  // What the changes that are not published take away; nullopt: nothing, or they are seen by nobody else.
  virtual std::optional<Kills> kills() const { return std::nullopt; }
  // What happened to the file: an open emptied it and may write to it; stores through a mapping came; a descriptor that
  // wrote was closed; a close, fsync or unlock asks for all of its bytes.
  virtual void NoteEmptiedByOpen() {}
  virtual void NotePages() {}
  virtual void NoteClosed() {}
  virtual void NoteAskedFor() {}
  // A page of the recipe is not there, or damaged. Whether another host may have replaced the record that names it:
  // then a round finds out.
  virtual bool NoteUnreadablePage() { return false; }
  // Nothing in memory counts any more.
  virtual bool must_reload() const { return false; }
  // Other hosts may write to the file at the same time.
  virtual bool is_shared() const { return false; }
};

}  // namespace cairnfs::fs
