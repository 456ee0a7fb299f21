#include "fs/wiring.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/machine_limits.h"
#include "fs/collector.h"
#include "fs/local_collection.h"
#include "fs/local_publisher.h"
#include "fs/shared_collection.h"
#include "fs/shared_publisher.h"
#include "store/chunk_cache.h"

namespace cairnfs::fs {

FileSystem::Impl::Impl(const FileSystem::Parts& the_parts, const FsOptions& the_options)
    : parts(the_parts),
      options(the_options),
      table([this](const InodePtr& inode) { sharing->NoteOrphan(inode); }),
      workers(std::make_unique<TaskQueue>(
          "cairn-worker", options.worker_threads > 0 ? options.worker_threads : std::max(2u, UsableCores()))),
      waiters(std::make_unique<TaskQueue>("cairn-waiter", std::max(4u, options.waiting_threads))),
      error_names(std::make_unique<ErrorNames>(parts.kv, parts.names, *waiters, parts.cluster.has_value())) {
  Streams::Hooks hooks;
  hooks.freed = [this](uint64_t bytes) { collection->NoteFreed(bytes); };  // little each time, and often
  hooks.lost = [this](const InodePtr& inode) {
    inode->mutex.AssertHeld();
    lost->Note(inode);
    dirty_files->bytes_lacked = true;
  };
  hooks.failed = [this](InodeId inode) { error_names->Note(inode); };
  hooks.dropped = [this](InodeId inode, uint64_t bytes) { lost->NoteDropped(inode, bytes); };
  hooks.no_room = [this] { return room->NoteNone(); };
  streams = std::make_unique<Streams>(parts.chunks, parts.local_chunks, parts.pool, parts.chunk_params, *workers,
                                      std::move(hooks));
  dirty_files = std::make_unique<DirtyFiles>(parts.chunks, parts.local_chunks, *streams, table);
}

void FileSystem::Impl::MakeRounds(std::unique_ptr<Publisher> made_publisher) {
  publisher = std::move(made_publisher);
  rounds = std::make_unique<SyncRounds>(SyncRounds::Parts{parts.names, *dirty_files, *publisher, *waiters},
                                        SyncRounds::Options{options.flush_interval_ms});
}

void FileSystem::Impl::MakeContents(std::unique_ptr<FileRecords> made_records,
                                    std::unique_ptr<Collector> made_collection, kv::NameRoom& name_room) {
  records = std::move(made_records);
  collection = std::move(made_collection);
  room = std::make_unique<Room>(Room::Parts{parts.local_chunks, name_room, *rounds, *collection});
  lost = std::make_unique<LostFiles>(table, parts.names);
  privileges = std::make_unique<Privileges>(parts.names, table, *rounds);
  trash = std::make_unique<Trash>(Trash::Parts{parts.names, *rounds, options, parts.cluster.has_value()});
  room->SetTrash(trash.get());
  rounds->SetMakeRoom(
      {.count = [this] { return room->emptyings(); },
       .then = [this](uint64_t count,
                      std::function<void(bool)> then) { return room->EmptyTrashThen(count, std::move(then)); }});
  waits = std::make_unique<Waits>();
  quotas = std::make_unique<Quotas>(Quotas::Parts{.table = table,
                                                  .rounds = *rounds,
                                                  .files = *dirty_files,
                                                  .names = parts.names,
                                                  .waits = *waits,
                                                  .trash = *trash,
                                                  .wait_max = std::chrono::milliseconds(options.metadata_wait_ms)},
                                    Context(stop.get_token()));
  contents = std::make_unique<Contents>(parts, *records, table, *streams, *rounds, *room, *waiters);
  backing_files = std::make_unique<BackingFiles>(BackingFiles::Parts{
      .pool = parts.pool,
      .chunks = parts.chunks,
      .table = table,
      .make_room =
          [this](uint64_t bytes) { parts.local_chunks.cache().MakeRoom(bytes / io::BufferPool::kBufferBytes + 1); },
      .load =
          [this](const Context& context, const InodePtr& inode) {
            inode->mutex.AssertHeld();
            return contents->Load(context, inode);
          },
      .drop_if_unused =
          [this](const InodePtr& inode) {
            inode->mutex.AssertHeld();
            contents->DropIfUnused(inode);
          },
      .post = [this](std::function<void()> task) { waiters->Post(std::move(task)); }});
  fills_ahead = std::make_unique<FillsAhead>(
      FillsAhead::Parts{.backing_files = *backing_files, .pool = parts.pool, .names = parts.names, .table = table});
}

void FileSystem::Impl::MakeTickets(kv::KvStore& kv, Tickets::Self self) {
  tickets = std::make_unique<Tickets>(
      Tickets::Parts{.names = parts.names,
                     .kv = kv,
                     .last_refused = [this](InodeId directory) { return commits->refusals().Last(directory); },
                     .sync_names = [this](Done<void> done) { changes->SyncNames(std::move(done)); },
                     .rename_max = std::chrono::seconds(options.commit_wait_seconds_max)},
      std::move(self));
}

Services FileSystem::Impl::MakeServices() {
  return {.parts = parts,
          .options = options,
          .table = table,
          .handles = handles,
          .records = *records,
          .contents = *contents,
          .backing_files = *backing_files,
          .fills_ahead = *fills_ahead,
          .streams = *streams,
          .rounds = *rounds,
          .room = *room,
          .quotas = *quotas,
          .privileges = *privileges,
          .lost = *lost,
          .totals = *totals,
          .trash = *trash,
          .saves = saves,
          .commits = *commits,
          .keeping = keeping,
          .atomic_rules = atomic_rules,
          .policies = *policies,
          .tickets = *tickets,
          .seals = seals,
          .session = *session,
          .sharing = *sharing,
          .closing = *closing,
          .copies = *copies,
          .calls = *calls,
          .waits = *waits,
          .error_names = *error_names,
          .waiters = *waiters};
}

void FileSystem::Impl::MakeThemes(std::unique_ptr<NameChanges> made_changes) {
  commits->SetReadOnly(options.read_only);
  policies->SetReadOnly(options.read_only);
  tickets->SetReadOnly(options.read_only);
  const Services services = MakeServices();
  changes = std::move(made_changes);
  names = std::make_unique<Names>(services, *changes);
  quota_settings = std::make_unique<QuotaSettings>(services, parts.cluster ? parts.cluster->store : parts.kv);
  attributes = std::make_unique<Attributes>(services, *names, *quota_settings);
  open_files = std::make_unique<OpenFiles>(services);
  writer = std::make_unique<Writer>(services);
  reader = std::make_unique<Reader>(services);
  atomic_files = std::make_unique<AtomicFiles>(AtomicFiles::Parts{
      .services = services, .changes = *changes, .names = *names, .open_files = *open_files, .reader = *reader});
  seals.SetPathOf([this](const Context& context, InodeId inode) { return atomic_files->PathOf(context, inode); });
  directories = std::make_unique<Directories>(parts.names, table);
  checker = std::make_unique<Checker>(Checker::Parts{parts, *rounds, *collection, *copies});
  maintenance = std::make_unique<Maintenance>(services, Maintenance::Parts{.changes = *changes,
                                                                           .open_files = *open_files,
                                                                           .atomic_files = *atomic_files,
                                                                           .reader = *reader,
                                                                           .writer = *writer,
                                                                           .collection = *collection,
                                                                           .checker = *checker});
}

void FileSystem::Impl::StartTrash(std::function<void()> await_removed, std::function<bool()> empties_expired) {
  trash->Start({.removed = [this](const meta::Attr& attr) { changes->NoteRemoved(attr); },
                .await_removed = std::move(await_removed),
                .empties_expired = std::move(empties_expired)});
}

void FileSystem::Impl::End() {
  if (!waiters) return;
  fills_ahead->Stop();
  backing_files->End();
  policies->Stop();
  tickets->Stop();
  trash->Stop();
  atomic_rules.Stop();
  if (atomic_files) atomic_files->Stop();
  quota_settings->Stop();
  reader->AwaitRunning();
  commits->Stop();
  stop.request_stop();
  waits->Stop();
  checker->Stop();
  collection->Stop();
  error_names->Stop();
  room->Stop();
  calls->Stop();
  quotas->Stop();  // after those that may wait for it
  waiters.reset();
  workers.reset();
}

LocalFileSystem::LocalFileSystem(const FileSystem::Parts& the_parts, const FsOptions& the_options,
                                 uint64_t uncollected_bytes)
    : Impl(the_parts, the_options), metadata_room(parts.kv, parts.local_chunks, *waiters, Context(stop.get_token())) {
  session = std::make_unique<HostSession>();
  commits = std::make_unique<Commits>(Commits::Parts{parts.names, parts.kv, saves}, Commits::Self{});
  policies = std::make_unique<Policies>(Policies::Parts{parts.names, parts.kv}, Policies::Self{});
  MakeTickets(parts.kv, {});
  calls = std::make_unique<LocalCalls>(*waiters);
  MakeRounds(std::make_unique<LocalPublisher>(*parts.local_kv, parts.local_chunks, *dirty_files, table,
                                              options.freeze_step_bytes));
  MakeContents(std::make_unique<LocalRecords>(parts),
               std::make_unique<Collector>(
                   std::make_unique<LocalCollection>(parts.kv, parts.local_chunks, *rounds, this->options),
                   parts.local_chunks, options, uncollected_bytes),
               metadata_room);
  quotas->SetShares(std::make_unique<LocalShares>(*parts.local_kv, quotas->usage()));
  auto made_totals = std::make_unique<LocalTotals>(Totals::Parts{parts.kv, table, *waiters, Context(stop.get_token())},
                                                   *parts.local_kv, metadata_room);
  local_totals = made_totals.get();
  totals = std::move(made_totals);
  copies = std::make_unique<LocalCopies>(LocalCopies::Parts{parts, table, *rounds, *lost});
  sharing = std::make_unique<LocalFiles>(LocalFiles::Parts{.parts = parts,
                                                           .table = table,
                                                           .contents = *contents,
                                                           .rounds = *rounds,
                                                           .room = *room,
                                                           .totals = *local_totals,
                                                           .waiters = *waiters});
  closing = std::make_unique<LocalClosing>(LocalClosing::Parts{*streams, *rounds, *error_names, file_locks});
  MakeThemes(std::make_unique<LocalNameChanges>(MakeServices()));
}

Status LocalFileSystem::Start() {
  CAIRNFS_RETURN_IF_ERROR(tickets->FailWhereBytesMayLack());
  CAIRNFS_RETURN_IF_ERROR(quotas->Start());
  if (Status ended = parts.names.EndAllSealing({}); !ended.ok()) {
    spdlog::warn("what was about to be sealed when the daemon ended stays so: {}", ended.error().message);
  }
  local_totals->Start();
  CAIRNFS_RETURN_IF_ERROR(atomic_rules.Start({}));
  quota_settings->Start();
  commits->LookAtRecords();
  StartTrash([] {}, [] { return true; });
  return {};
}

Result<kv::LeaseId> SharedFileSystem::JoinSession(kv::Transaction& transaction) {
  CAIRNFS_ASSIGN_OR_RETURN(const cluster::Membership::Session now, parts.cluster->membership.session());
  host.AddSessionCompare(transaction, now.revision);
  return now.lease;
}

void SharedFileSystem::MakeCommits() {
  commits = std::make_unique<Commits>(
      Commits::Parts{parts.names, parts.kv, saves},
      Commits::Self{.node = host.self(),
                    .name = [this] { return host.NameOf(host.self()); },
                    .has_copies = [this] { return host.chunks().ClusterStats().unacknowledged_bytes == 0; }});
  policies = std::make_unique<Policies>(
      Policies::Parts{parts.names, parts.kv},
      Policies::Self{
          .name = [this] { return host.NameOf(host.self()); },
          .applies = [this](const Context& context,
                            bool may) { return may ? host.TakeRetention(context) : host.LeaveRetention(context); }});
  MakeTickets(parts.cluster->store,
              {.node = host.self(), .join = [this](kv::Transaction& transaction) { return JoinSession(transaction); }});
}

void SharedFileSystem::MakeShares() {
  quotas->SetShares(std::make_unique<SharedShares>(
      SharedShares::Parts{.shared = parts.cluster->shared,
                          .store = parts.cluster->store,
                          .usage = quotas->usage(),
                          .self = host.self(),
                          .session = [this] { return host.session(); },
                          .join = [this](kv::Transaction& transaction) { return JoinSession(transaction); },
                          .until_stop = Context(stop.get_token()),
                          .went_back = [this] { quotas->ForgetCredits(); }}));
}

SharedFileSystem::SharedFileSystem(const FileSystem::Parts& the_parts, const FsOptions& the_options)
    : SharedRoundParts(the_parts, the_options), Impl(the_parts, the_options) {
  auto made_session =
      std::make_unique<SharedSession>(host, stop.get_token(), std::chrono::milliseconds(options.metadata_wait_ms));
  const SharedSession& own_session = *made_session;
  MakeCommits();
  session = std::move(made_session);
  auto made_calls = std::make_unique<SharedCalls>();
  SharedCalls& own_calls = *made_calls;
  calls = std::move(made_calls);
  MakeRounds(std::make_unique<SharedPublisher>(SharedPublisher::Parts{.kv = parts.kv,
                                                                      .names = parts.names,
                                                                      .chunks = parts.chunks,
                                                                      .host = host,
                                                                      .streams = *streams,
                                                                      .table = table,
                                                                      .files = *dirty_files,
                                                                      .marks = marks}));
  auto made_records = std::make_unique<SharedRecords>(parts, host, own_session, *streams);
  SharedRecords& own_records = *made_records;
  MakeContents(
      std::move(made_records),
      std::make_unique<Collector>(std::make_unique<SharedCollection>(parts, host), parts.local_chunks, options, 0),
      name_room);
  MakeShares();
  totals = std::make_unique<SharedTotals>(Totals::Parts{parts.kv, table, *waiters, Context(stop.get_token())},
                                          parts.cluster->shared);
  unpublished = std::make_unique<Unpublished>(parts.names, host, *rounds);
  rounds->SetFindBelow([this](const SyncRounds::Sources& sources, const std::vector<InodeId>& files) {
    return unpublished->LyingBelow({}, sources, files);
  });
  auto made_copies = std::make_unique<SharedCopies>(SharedCopies::Parts{.parts = parts,
                                                                        .options = options,
                                                                        .host = host,
                                                                        .session = own_session,
                                                                        .table = table,
                                                                        .lost = *lost,
                                                                        .calls = own_calls,
                                                                        .unpublished = *unpublished});
  SharedCopies& own_copies = *made_copies;
  copies = std::move(made_copies);
  auto made_sharing = std::make_unique<SharedFiles>(SharedFiles::Parts{.parts = parts,
                                                                       .host = host,
                                                                       .session = own_session,
                                                                       .table = table,
                                                                       .contents = *contents,
                                                                       .records = own_records,
                                                                       .rounds = *rounds,
                                                                       .room = *room,
                                                                       .calls = own_calls,
                                                                       .waits = *waits,
                                                                       .stop = stop.get_token()});
  shared_files = made_sharing.get();
  sharing = std::move(made_sharing);
  closing = std::make_unique<SharedClosing>(SharedClosing::Parts{.marks = marks,
                                                                 .host = host,
                                                                 .session = own_session,
                                                                 .table = table,
                                                                 .streams = *streams,
                                                                 .contents = *contents,
                                                                 .rounds = *rounds,
                                                                 .calls = own_calls,
                                                                 .waits = *waits,
                                                                 .error_names = *error_names,
                                                                 .locks = parts.cluster->locks});
  MakeThemes(std::make_unique<SharedNameChanges>(
      MakeServices(), SharedNameChanges::Parts{host, own_session, own_copies, *unpublished}));
  host.OnEpoch([this] {
    parts.names.ForgetSeals();
    CompareAllWithStore();
  });
  member =
      std::make_unique<ClusterMember>(ClusterMember::Parts{parts, options, host, table, *streams, *error_names, stop});
}

void SharedFileSystem::CompareAllWithStore() {
  table.ForEach([](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    if (!inode->content) return;
    inode->others_noticed++;
    inode->content->shared().must_compare = true;
    inode->content->shared().compared_revision = 0;
  });
}

SharedFileSystem::~SharedFileSystem() {
  host.peers().SetOpenHandler({});
  if (metadata_room) parts.cluster->hosted->SetNameRoom(nullptr);
  End();
}

Status SharedFileSystem::Start() {
  if (kv::NameRoomUser* hosted = parts.cluster->hosted) {
    metadata_room =
        std::make_unique<MetadataRoom>(parts.cluster->shared, parts.local_chunks, *waiters, Context(stop.get_token()));
    hosted->SetNameRoom(metadata_room.get());
  }
  CAIRNFS_RETURN_IF_ERROR(member->Start());
  CAIRNFS_RETURN_IF_ERROR(commits->WatchOthers(parts.cluster->shared));
  CAIRNFS_RETURN_IF_ERROR(atomic_rules.StartAmongHosts({}, parts.cluster->shared));
  CAIRNFS_RETURN_IF_ERROR(quotas->Start());
  quota_settings->Start();
  commits->LookAtRecords();
  keeping.AskOthers([this](const Context& context) { return host.OpenElsewhere(context); });
  seals.SetAskOthers([this](const Context& context, Seals::What what) { return host.WritersElsewhere(context, what); },
                     [this] { return host.NameOf(host.self()); });
  seals.SetSession([this] { return host.session(); });
  seals.SetPublish([this](const std::function<void()>& ended) {
    rounds->Request([ended](const Status&) { ended(); }, SyncRounds::Scope::kClosed);
  });
  host.peers().SetOpenHandler([this](cluster::OpenWhat what) -> Result<std::vector<InodeId>> {
    if (what == cluster::OpenWhat::kPlaces) return keeping.OpenPlaces();
    return seals.WrittenHere(Context(stop.get_token()), what, Seals::For::kOtherHost);
  });
  shared_files->SetOrphans(member->orphans());
  room->SetLacksNodes([this] { return host.chunks().LacksNodes(); });
  StartTrash([this] { member->orphans().AwaitRemoved(Context(stop.get_token())); },
             [this] { return host.IsFirstUp(); });
  return {};
}

}  // namespace cairnfs::fs
