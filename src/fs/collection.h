// Collection: gives back what deleted files took.
#pragma once

#include <optional>
#include <string>

#include "fs/filesystem.h"

namespace cairnfs::fs {

// Any thread.
class Collection {
 public:
  virtual ~Collection() = default;

  virtual void NoteFreed(uint64_t bytes) = 0;
  // Bytes that were accepted found none: little that was freed is worth a collection too.
  virtual void NoteNoRoom() = 0;
  // Joins the collection that is about to begin. kBusy: none is possible.
  virtual void Request(Done<CollectionStatus> done) = 0;
  // What a collection that began now would keep and free. Changes nothing. Joins the count that is about to begin.
  // kBusy as for a collection.
  virtual void RequestCount(Done<LiveCount> done) = 0;
  virtual std::optional<LiveCount> last_count() const = 0;  // of the last count or collection
  virtual CollectionStatus Status() const = 0;
  // Of so many chunks on this node, of which files name so many: those that a collection would free.
  virtual uint64_t CountFree(uint64_t stored, uint64_t named) const = 0;
  virtual bool running() const = 0;
  virtual std::string last_error() const = 0;  // of the last collection; empty when it went well
  // Gives up a collection that runs, returns once it has ended, and lets none begin until Resume; what is to be
  // collected is left as NoteUncollected leaves it, and Resume takes it. Nothing to do where that is so already.
  virtual cairnfs::Status Hold() = 0;
  virtual cairnfs::Status Resume() = 0;
  virtual void SetRate(uint64_t bytes_per_second_max) = 0;  // of the next one
  // A collection that runs is given up, and none begins any more.
  virtual void Stop() = 0;
  // Writes for the next process what is left to collect; the last round makes it durable. After Stop.
  virtual cairnfs::Status NoteUncollected() = 0;
};

// Where other hosts name chunks too: this one alone cannot tell which are free.
class NoCollection final : public Collection {
 public:
  void NoteFreed(uint64_t) override {}
  void NoteNoRoom() override {}
  void Request(Done<CollectionStatus> done) override { done(SeveralHosts()); }
  void RequestCount(Done<LiveCount> done) override { done(SeveralHosts()); }
  std::optional<LiveCount> last_count() const override { return std::nullopt; }
  CollectionStatus Status() const override {
    CollectionStatus status;
    status.phase = "idle";
    return status;
  }
  uint64_t CountFree(uint64_t, uint64_t) const override { return 0; }
  bool running() const override { return false; }
  std::string last_error() const override { return {}; }
  cairnfs::Status Hold() override { return {}; }
  cairnfs::Status Resume() override { return {}; }
  void SetRate(uint64_t) override {}
  void Stop() override {}
  cairnfs::Status NoteUncollected() override { return {}; }

 private:
  static Error SeveralHosts() {
    return MakeError(ErrorCode::kBusy, "chunks are not collected while several hosts share them");
  }
};

}  // namespace cairnfs::fs
