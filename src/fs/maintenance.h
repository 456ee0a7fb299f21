// Maintenance: what operators ask of a filesystem and have it do.
#pragma once

#include <atomic>
#include <vector>

#include "base/clock.h"
#include "fs/atomic_files.h"
#include "fs/checker.h"
#include "fs/collector.h"
#include "fs/name_changes.h"
#include "fs/open_files.h"
#include "fs/reader.h"
#include "fs/services.h"
#include "fs/unsaved.h"
#include "fs/writer.h"

namespace cairnfs::fs {

// All functions: any thread.
class Maintenance {
 public:
  struct Parts {  // all outlive it
    NameChanges& changes;
    OpenFiles& open_files;
    AtomicFiles& atomic_files;
    Reader& reader;
    Writer& writer;
    Collector& collection;
    Checker& checker;
  };
  Maintenance(const Services& services, const Parts& parts)
      : at_(services), parts_(parts), read_only_(services.options.read_only) {}

  Result<FsSpace> GetSpace();
  // As many steps as there are files that are open or changed, however many there are. Right after a start it waits
  // until all records were read once.
  FsStatus GetStatus() const;
  // Refusals::List.
  std::vector<meta::RefusedCommit> GetRefusedCommits(const Context& context) const {
    return at_.commits.refusals().List(context);
  }
  // Commits::TellRuns.
  std::vector<RunReport> GetRuns() const { return at_.commits.TellRuns(); }
  // From now on the status tells of a stop, which waits for copies until then.
  void NoteStop(Clock::time_point waits_end) { stop_waits_end_.store(waits_end); }
  // Whose entries fill the metadata, the largest first: reads all of it.
  Result<std::vector<MetadataOwner>> GetMetadataOwners(const Context& context) const;
  FsTraffic GetTraffic() const;  // some counters, at no cost
  // As fs::ListUnsaved.
  void ListUnsaved(const Context& context, const std::function<void(const Unsaved&)>& tell) const {
    fs::ListUnsaved(at_, parts_.atomic_files.GetPlacesToCome(), context, tell);
  }
  // Of the options that the filesystem was started with, changes these: flush_interval_ms, update_atime,
  // collect_bytes_per_second_max, read_only. Where it is read_only from now on, `done` is told once everything is
  // durable and no collection runs; what else it is told is the error of that. May block while a collection ends.
  void Change(const FsOptions& options, Done<void> done);
  // A sync point for everything before the call.
  void Sync(Done<void> done);
  // As Sync, and blocks; what is closed becomes durable first, and what fails for a while is tried again. Files that
  // are to appear whole are waited for until they are closed. Once the context has expired: why it is not done. The
  // rounds go on.
  Status Drain(const Context& context);
  // As Sync, and blocks. Among other hosts it fails, too, where one of them has lost or cannot publish bytes of the
  // inode, or of files below it; what they have closed is published already. Not to be called where this filesystem
  // calls back. kNotFound: the inode is not there. kIo: bytes are lost, or a host cannot publish them; names files and
  // hosts. kUnavailable, kNoSpace, kStale: as of fsync. kInterrupted: soon after the caller is cancelled.
  Status SyncBelow(InodeId inode, const Caller& caller);
  // As Sync, but of names alone: also while bytes find no space. Among other hosts what is seen is durable.
  void SyncNames(Done<void> done);
  // Runs a collection now (or joins the one that runs); `done` when it is over. GetCollection tells how far it is.
  void Collect(Done<CollectionStatus> done);
  // After the metadata of several hosts went back to an older state nothing is collected until this is called.
  Status AllowCollections() { return parts_.collection.Release(); }
  // What a collection that began now would keep and free, those that wait for it first. kBusy among several hosts.
  void CountLive(Done<LiveCount> done) { parts_.collection.RequestCount(std::move(done)); }
  CollectionStatus GetCollection() const;
  // Reads every inode, recipe and chunk. Beside everything else; one at a time: kBusy while another check runs.
  // kInterrupted soon after the context has expired, or Stop was called.
  void Check(const Context& context, Done<CheckReport> done) { parts_.checker.Request(context, std::move(done)); }
  CheckProgress GetCheckProgress() const { return parts_.checker.progress(); }
  // Makes room in the trash for what was accepted, while that can still be done.
  void SyncBeforeStop(Clock::time_point until);

 private:
  // A round of all, waited for. kUnavailable: the context's deadline came first. kInterrupted: it was stopped.
  Status SyncWithin(const Context& context);
  // kBusy: one of these is not closed yet.
  Status CheckClosed(const PlacesToCome& begun);
  Status CheckNoneFailed();  // the error of a file of this host that could not be published

  const Services at_;
  const Parts parts_;
  std::atomic<bool> read_only_;
  std::atomic<Clock::time_point> stop_waits_end_{Clock::time_point()};  // the epoch: it does not stop
};

}  // namespace cairnfs::fs
