// FileSystem::Impl: the parts of a filesystem. A host alone and one of several are made of different ones; here, and
// nowhere else, it is decided which.
#pragma once

#include <atomic>
#include <memory>
#include <stop_token>

#include "coherence/cluster_locks.h"
#include "coherence/local_locks.h"
#include "fs/atomic_files.h"
#include "fs/attributes.h"
#include "fs/backing_files.h"
#include "fs/checker.h"
#include "fs/cluster_member.h"
#include "fs/collector.h"
#include "fs/directories.h"
#include "fs/fills_ahead.h"
#include "fs/maintenance.h"
#include "fs/marks.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/quota_settings.h"
#include "fs/reader.h"
#include "fs/services.h"
#include "fs/shared_files.h"
#include "fs/shared_renames.h"
#include "fs/tickets.h"
#include "fs/trash.h"
#include "fs/writer.h"

namespace cairnfs::fs {

struct FileSystem::Impl {
  virtual ~Impl() = default;  // the whole is ended by End, which what was made half does not need
  virtual Status Start() = 0;
  virtual coherence::FileLocks& locks() = 0;
  // Other hosts are answered, and orphans removed, no more.
  virtual void LeaveCluster(Clock::time_point) {}
  void End();  // ends all threads but the rounds'; waits for the reads in flight

  // In the order in which they are made. Those that other parts use as they end are ended by End.
  const FileSystem::Parts parts;
  const FsOptions options;                                          // as it was started with
  std::stop_source stop;                                            // of what goes on by itself
  std::atomic<Clock::time_point> end_by{Clock::time_point::max()};  // FileSystem::EndBy
  InodeTable table;
  IdTable<Handle> handles;
  std::unique_ptr<TaskQueue> workers;  // cut, hash, store
  std::unique_ptr<TaskQueue> waiters;  // operations that wait for workers, chunks or rounds
  std::unique_ptr<ErrorNames> error_names;
  std::unique_ptr<Streams> streams;
  std::unique_ptr<HostSession> session;
  std::unique_ptr<Calls> calls;
  std::unique_ptr<FileRecords> records;
  std::unique_ptr<DirtyFiles> dirty_files;
  std::unique_ptr<Publisher> publisher;
  std::unique_ptr<SyncRounds> rounds;
  std::unique_ptr<Collector> collection;
  std::unique_ptr<Room> room;
  std::unique_ptr<Quotas> quotas;
  std::unique_ptr<LostFiles> lost;
  std::unique_ptr<Privileges> privileges;
  std::unique_ptr<Waits> waits;
  std::unique_ptr<Contents> contents;
  std::unique_ptr<BackingFiles> backing_files;
  std::unique_ptr<FillsAhead> fills_ahead;
  std::unique_ptr<Totals> totals;
  std::unique_ptr<Trash> trash;
  Saves saves{[this](InodeId directory) { return table.DirectoryOf(directory); }};
  std::unique_ptr<Commits> commits;
  Keeping keeping{parts.names, table};
  AtomicRules atomic_rules{parts.kv, parts.names, parts.cluster.has_value()};
  Seals seals{parts.names, table};
  std::unique_ptr<Policies> policies;
  std::unique_ptr<Tickets> tickets;
  std::unique_ptr<Copies> copies;
  std::unique_ptr<Sharing> sharing;
  std::unique_ptr<Closing> closing;
  std::unique_ptr<NameChanges> changes;
  std::unique_ptr<Names> names;
  std::unique_ptr<Attributes> attributes;
  std::unique_ptr<OpenFiles> open_files;
  std::unique_ptr<Writer> writer;
  std::unique_ptr<Reader> reader;
  std::unique_ptr<AtomicFiles> atomic_files;
  std::unique_ptr<Directories> directories;
  std::unique_ptr<Checker> checker;
  std::unique_ptr<Maintenance> maintenance;
  std::unique_ptr<QuotaSettings> quota_settings;

 protected:
  // Once `commits` is there. `kv`: as Tickets::Parts has it.
  void MakeTickets(kv::KvStore& kv, Tickets::Self self);
  Impl(const FileSystem::Parts& the_parts, const FsOptions& the_options);
  void MakeRounds(std::unique_ptr<Publisher> made_publisher);
  // What both are made of, once the session, the calls and the rounds are there.
  void MakeContents(std::unique_ptr<FileRecords> made_records, std::unique_ptr<Collector> made_collection,
                    kv::NameRoom& name_room);
  // Once all that comes before `changes` is.
  Services MakeServices();
  void MakeThemes(std::unique_ptr<NameChanges> made_changes);
  void StartTrash(std::function<void()> await_removed, std::function<bool()> empties_expired);  // Trash::Hooks
};

struct LocalFileSystem final : FileSystem::Impl {
  LocalFileSystem(const FileSystem::Parts& the_parts, const FsOptions& the_options, uint64_t uncollected_bytes);
  ~LocalFileSystem() override { End(); }
  Status Start() override;
  coherence::FileLocks& locks() override { return file_locks; }

  MetadataRoom metadata_room;
  coherence::LocalLocks file_locks;     // empty where the kernel keeps them
  LocalTotals* local_totals = nullptr;  // `totals`
};

// Outlive the rounds, which use them on their thread.
struct SharedRoundParts {
  SharedRoundParts(const FileSystem::Parts& parts, const FsOptions& options)
      : name_room(parts.cluster->shared),
        host(*parts.cluster, parts.kv, parts.names, options.durability),
        marks(parts.kv, host) {}
  ToldNameRoom name_room;
  ClusterHost host;
  Marks marks;
};

struct SharedFileSystem final : SharedRoundParts, FileSystem::Impl {
  SharedFileSystem(const FileSystem::Parts& the_parts, const FsOptions& the_options);
  ~SharedFileSystem() override;
  // Adds a compare of the session there is now; returns its lease.
  Result<kv::LeaseId> JoinSession(kv::Transaction& transaction);
  void MakeCommits();          // and the policies that follow them, and the tickets
  void MakeShares();           // of quotas
  void CompareAllWithStore();  // each open file, before it is read or published again
  Status Start() override;
  coherence::FileLocks& locks() override { return parts.cluster->locks; }
  void LeaveCluster(Clock::time_point waits_end) override {
    host.EndSyncsBy(waits_end);
    member->Stop();
  }

  std::unique_ptr<MetadataRoom> metadata_room;  // null: another host keeps the names, or an etcd
  std::unique_ptr<Unpublished> unpublished;
  std::unique_ptr<ClusterMember> member;
  SharedFiles* shared_files = nullptr;  // `sharing`
};

}  // namespace cairnfs::fs
