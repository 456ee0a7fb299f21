#include "fs/trash.h"

#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/log.h"
#include "fs/permissions.h"
#include "fs/totals.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kTrashPerPage = 1000;
constexpr size_t kListedPerPage = 200;          // whose paths fit into a message
constexpr size_t kEntriesLookedAtMax = 10'000;  // by one call
constexpr size_t kDoomedPerPage = 64;
constexpr std::chrono::milliseconds kTrashLookEvery{10'000};
// The same for a host of several that only counts it: another one looks after what has expired.
constexpr std::chrono::milliseconds kTrashCountEvery{60'000};
constexpr Clock::duration kTrashGoesOnAfter = std::chrono::seconds(1);
constexpr int kTrashLookShare = 20;                  // from one look to the next at least so many times what it took
constexpr std::chrono::seconds kFoundEmptyHolds{1};  // where other hosts may put something there
constexpr uint64_t kOldestShare = 8;
constexpr uint64_t kOldestBytesMin = 64 * kMiB;
constexpr size_t kTrashRecordsPerRead = 512;
constexpr unsigned kMeasuredAtOnceMax = 2;  // of a user
constexpr size_t kMeasuredOfAllMax = 3;     // fewer than there are threads that wait for such
constexpr std::chrono::seconds kEmptyAtOnceMax{30};

bool MaySee(uint32_t uid, const meta::TrashRecord& record) {
  return uid == 0 || uid == record.owner || uid == record.parent_owner;
}

void Subtract(std::atomic<uint64_t>& from, uint64_t count) {
  uint64_t before = from.load();
  while (!from.compare_exchange_weak(before, before - std::min(before, count))) {
  }
}

}  // namespace

Trash::Trash(const Parts& parts) : at_(parts), is_read_only_(parts.options.read_only) {}

void Trash::Start(Hooks hooks) {
  hooks_ = std::move(hooks);
  thread_ = std::thread([this] { Run(); });
}

void Trash::StopExpiring() {
  stop_expiring_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void Trash::Stop() {
  stop_.request_stop();
  StopExpiring();
}

Status Trash::CheckMayChange() const {
  if (!is_read_only_) return {};
  return MakeError(ErrorCode::kPermission, "the filesystem is mounted read_only");
}

std::optional<meta::TrashParams> Trash::For(uint32_t uid, std::string_view name) const {
  const std::chrono::milliseconds keep(at_.options.trash_ms);
  if (retention::IsGoingName(name)) {
    return meta::TrashParams{.keep = std::max<std::chrono::milliseconds>(keep, kRetentionTrash),
                             .removed_by = uid,
                             .name = retention::NameBeforeGoing(name).value_or(""),
                             .by_retention = true};
  }
  if (keep.count() == 0) return std::nullopt;
  return meta::TrashParams{.keep = keep, .removed_by = uid};
}

Result<meta::TrashParams::Held> Trash::Measure(const Context& context, uint32_t uid, InodeId directory) {
  {
    MutexLock lock(mutex_);
    size_t all = 0;
    for (const auto& [user, count] : measuring_) all += count;
    if (all >= kMeasuredOfAllMax || measuring_[uid] >= kMeasuredAtOnceMax) {
      return MakeError(ErrorCode::kUnavailable, "other directories are being moved to the trash");
    }
    measuring_[uid]++;
  }
  auto held = MeasureNow(context, uid, directory);
  MutexLock lock(mutex_);
  if (--measuring_[uid] == 0) measuring_.erase(uid);
  return held;
}

Result<meta::TrashParams::Held> Trash::MeasureNow(const Context& context, uint32_t uid, InodeId directory) {
  meta::TrashParams::Held held;
  std::vector<InodeId> left{directory};
  while (!left.empty()) {
    const InodeId current = left.back();
    left.pop_back();
    CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, at_.names.GetAttr(context, current));
    if (uid != 0 && attr.uid != uid) return MakeError(ErrorCode::kNotEmpty, "a directory in it is another user's");
    std::string after;
    for (bool is_last = false; !is_last;) {
      if (context.Expired() || IsStopped()) return MakeError(ErrorCode::kInterrupted, "nobody waits for it");
      CAIRNFS_ASSIGN_OR_RETURN(const auto entries,
                               at_.names.ReadDirectory(context, current, after, kTrashRecordsPerRead));
      is_last = entries.size() < kTrashRecordsPerRead;
      std::vector<InodeId> files;
      for (const meta::DirectoryEntry& entry : entries) {
        held.files += entry.type == S_IFDIR ? 0 : 1;
        if (entry.type == S_IFDIR) left.push_back(entry.inode);
        if (entry.type == S_IFREG) files.push_back(entry.inode);
      }
      if (!entries.empty()) after = entries.back().name;
      CAIRNFS_ASSIGN_OR_RETURN(const uint64_t bytes, at_.names.SumAllocated(context, files, kTrashRecordsPerRead));
      held.bytes += bytes;
    }
  }
  return held;
}

void Trash::NoteAdded(uint64_t bytes) {
  added_++;
  entries_++;
  bytes_ += bytes;
}

void Trash::NoteGone(uint64_t entries, uint64_t bytes) {
  Subtract(entries_, entries);
  Subtract(bytes_, bytes);
}

void Trash::NoteRestored(const meta::TrashEntry& entry) { NoteGone(1, entry.record.bytes); }

std::string Trash::PlaceFor(const Context& context, const Credentials& caller, InodeId directory) {
  if (MayListAbove(context, at_.names, caller, directory)) return at_.names.PathOf(context, directory, "");
  return "#" + std::to_string(directory.value) + "/";
}

Result<Trash::Page> Trash::List(const Context& context, const Credentials& caller, const std::string& after) {
  const auto last = meta::DecodeTrashKey(after);
  if (!after.empty() && (!last || last->removed_at_ns == 0)) {
    return MakeError(ErrorCode::kInvalidArgument, "a page of the trash begins after one before it");
  }
  Page page;
  std::string from = after;
  for (size_t looked_at = 0; looked_at < kEntriesLookedAtMax; looked_at += kListedPerPage) {
    CAIRNFS_ASSIGN_OR_RETURN(auto entries, at_.names.ListTrash(context, from, kListedPerPage));
    const bool is_last = entries.size() < kListedPerPage;
    for (meta::TrashEntry& entry : entries) {
      from = entry.key;
      if (MaySee(caller.uid, entry.record)) page.items.push_back({std::move(entry), {}});
    }
    if (is_last) from.clear();
    if (is_last || page.items.size() >= kListedPerPage) break;
  }
  std::map<InodeId, std::string> above;  // finding a path reads directories
  for (TrashItem& item : page.items) {
    const meta::TrashRecord& record = item.entry.record;
    const auto [known, is_new] = above.try_emplace(record.parent);
    if (is_new) known->second = PlaceFor(context, caller, record.parent);
    item.path = known->second + record.name;
  }
  page.next = from;
  return page;
}

Result<TrashItem> Trash::Find(const Context& context, const Credentials& caller, InodeId id) {
  const auto attr = at_.names.GetAttr(context, id);
  const bool may_be_there = attr.ok() && attr->nlink == 0;
  std::string after;
  while (may_be_there) {
    CAIRNFS_ASSIGN_OR_RETURN(auto entries, at_.names.ListTrash(context, after, kTrashPerPage));
    for (meta::TrashEntry& entry : entries) {
      if (entry.parts.inode != id || !MaySee(caller.uid, entry.record)) continue;
      std::string path = PlaceFor(context, caller, entry.record.parent) + entry.record.name;
      return TrashItem{std::move(entry), std::move(path)};
    }
    if (entries.size() < kTrashPerPage || context.Expired()) break;
    after = entries.back().key;
  }
  return MakeError(ErrorCode::kNotFound, "the trash has no entry " + std::to_string(id.value) + " of yours");
}

Status Trash::Doom(const Context& context, const std::vector<meta::TrashEntry>& entries, Emptied& doomed) {
  std::span<const meta::TrashEntry> left(entries);
  while (!left.empty()) {
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "it goes on later");
    const auto some = left.first(std::min(left.size(), meta::Namespace::kDoomedAtOnceMax));
    left = left.subspan(some.size());
    CAIRNFS_RETURN_IF_ERROR(at_.rounds.WaitUntilAdmitted(context, NameChange::kRemoves));
    SyncRounds::Operation operation(at_.rounds);
    has_doomed_ = true;
    CAIRNFS_ASSIGN_OR_RETURN(const auto gone, at_.names.Doom(context, some));
    NoteGone(gone.entries, gone.bytes);
    doomed.entries += gone.entries;
    doomed.bytes += gone.bytes;
    for (const meta::Attr& attr : gone.orphans) hooks_.removed(attr);
  }
  return {};
}

Status Trash::ClearOne(const Context& context, InodeId directory, Emptied& cleared) {
  for (bool is_done = false; !is_done;) {
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "it goes on later");
    CAIRNFS_RETURN_IF_ERROR(at_.rounds.WaitUntilAdmitted(context, NameChange::kRemoves));
    SyncRounds::Operation operation(at_.rounds);
    CAIRNFS_ASSIGN_OR_RETURN(const auto some, at_.names.ClearDoomed(context, directory));
    for (const meta::Attr& attr : some.removed) {
      cleared.entries++;
      cleared.bytes += attr.allocated_bytes;
      hooks_.removed(attr);
    }
    is_done = some.is_done;
  }
  return {};
}

Status Trash::Clear(const Context& context, Emptied& cleared) {
  std::set<InodeId> left;  // they stay, and hold up no other
  Status failed;
  for (;;) {
    has_doomed_ = false;  // unless more comes from here on
    auto doomed = at_.names.ListDoomed(context, kDoomedPerPage + left.size());
    if (!doomed.ok()) {
      has_doomed_ = true;
      return doomed.error();
    }
    std::erase_if(*doomed, [&](InodeId directory) { return left.contains(directory); });
    if (doomed->empty()) {
      if (!failed.ok()) has_doomed_ = true;
      return failed;
    }
    has_doomed_ = true;
    for (const InodeId directory : *doomed) {
      const Status done = ClearOne(context, directory, cleared);
      if (done.ok()) continue;
      const ErrorCode why = done.error().code;
      if (context.Expired() || why == ErrorCode::kUnavailable || why == ErrorCode::kFailed) return done;
      if (why != ErrorCode::kCorrupt && why != ErrorCode::kNotFound && failed.ok()) failed = done;
      left.insert(directory);
      spdlog::error("a removed directory stays in the trash: inode {}: {}", directory.value, done.error().message);
    }
  }
}

// Somebody who needs room may be at it.
Status Trash::ClearInBackground(const Context& context) {
  if (!clearing_.TryLock()) return MakeError(ErrorCode::kInterrupted, "somebody is at it");
  Emptied cleared;
  Status done = Clear(context.WithTimeout(kEmptyAtOnceMax), cleared);
  clearing_.Unlock();
  return done;
}

void Trash::SetReadOnly(bool read_only) {
  is_read_only_ = read_only;
  if (!read_only) Wake();
}

void Trash::Wake() {
  MutexLock lock(mutex_);
  is_woken_ = true;
  wake_.NotifyAll();
}

Result<Trash::Emptied> Trash::Empty(const Context& context, const Credentials& caller, std::optional<InodeId> id) {
  CAIRNFS_RETURN_IF_ERROR(CheckMayChange());
  std::vector<meta::TrashEntry> entries;
  if (id) {
    CAIRNFS_ASSIGN_OR_RETURN(TrashItem item, Find(context, caller, *id));
    entries.push_back(std::move(item.entry));
  }
  Emptied emptied;
  std::string after;
  for (bool more = true; more;) {
    if (!id) {
      CAIRNFS_ASSIGN_OR_RETURN(entries, at_.names.ListTrash(context, after, kTrashPerPage));
      if (!entries.empty()) after = entries.back().key;
      more = entries.size() == kTrashPerPage && !context.Expired();
      std::erase_if(entries, [&](const meta::TrashEntry& entry) { return !MaySee(caller.uid, entry.record); });
    } else {
      more = false;
    }
    CAIRNFS_RETURN_IF_ERROR(Doom(context, entries, emptied));
  }
  if (emptied.entries > 0) Wake();  // what is below goes in the background
  return emptied;
}

uint64_t Trash::BytesStored(Totals& totals, uint64_t stored_bytes) const {
  const uint64_t in_trash = bytes_;
  if (in_trash == 0) return 0;
  FsStatus status{};
  totals.Fill(status);
  if (status.logical_bytes == 0) return 0;  // several hosts: not counted yet
  const uint64_t logical_bytes = std::max(status.logical_bytes, in_trash);
  return static_cast<uint64_t>(static_cast<double>(stored_bytes) * static_cast<double>(in_trash) /
                               static_cast<double>(logical_bytes));
}

bool Trash::HoldsAny() const {
  if (is_read_only_ || stop_.stop_requested()) return false;
  if (entries_ > 0 || has_doomed_ || added_ != added_before_look_) return true;
  const bool is_known = is_counted_ && !at_.is_shared;
  return !is_known && Clock::Now() - found_empty_at_.load() > kFoundEmptyHolds;
}

// No list is kept: what was doomed is in the next one no more.
Result<uint64_t> Trash::DoomOldest(const Context& context) {
  const uint64_t enough_bytes = std::max(bytes_ / kOldestShare, kOldestBytesMin);
  const uint64_t enough_entries = std::max<uint64_t>(entries_ / kOldestShare, 1);
  Emptied doomed, wanted;
  const auto is_enough = [&](const Emptied& sum) { return sum.bytes >= enough_bytes && sum.entries >= enough_entries; };
  const uint64_t added_before = added_;
  Status done;
  for (std::string after; done.ok() && !is_enough(doomed) && !context.Expired();) {
    CAIRNFS_ASSIGN_OR_RETURN(auto oldest, at_.names.ListTrash(context, after, kTrashPerPage));
    if (oldest.empty()) {
      entries_ = bytes_ = 0;
      added_before_look_ = added_before;
      found_empty_at_ = Clock::Now();
      break;
    }
    wanted = doomed;
    const auto taken = std::find_if(oldest.begin(), oldest.end(), [&](const meta::TrashEntry& entry) {
      if (is_enough(wanted)) return true;
      wanted.bytes += entry.record.bytes;
      wanted.entries++;
      return false;
    });
    oldest.erase(taken, oldest.end());
    after = oldest.back().key;
    done = Doom(context, oldest, doomed);
  }
  if (doomed.entries > 0) spdlog::info("the trash is emptied of its {} oldest entries: room is needed", doomed.entries);
  if (!done.ok() && doomed.entries == 0) return done.error();
  return doomed.entries;
}

bool Trash::EmptyOldest() {
  if (is_read_only_ || IsStopped()) return false;
  MutexLock lock(clearing_);
  // Whoever waits for it goes on after that, though there be more.
  const Context context = Context(stop_.get_token()).WithTimeout(kEmptyAtOnceMax);
  const auto doomed = DoomOldest(context);
  Emptied cleared;
  const Status done = doomed.ok() ? Clear(context, cleared) : Status(doomed.error());
  if (IsStopped()) return false;
  const bool is_cut_short = !done.ok() && done.error().code == ErrorCode::kInterrupted;
  if (is_cut_short) Wake();  // the rest goes in the background
  if (!done.ok() && !is_cut_short) spdlog::warn("the trash cannot be emptied: {}", done.error().message);
  // A process below may make names as quickly as they go, and those are no reason to try again.
  const bool has_emptied = (doomed.ok() && *doomed > 0) || cleared.bytes > 0 || (done.ok() && cleared.entries > 0);
  if (has_emptied) hooks_.await_removed();
  return has_emptied;
}

// What unlink moved there counts no more, and an empty directory has nothing that does.
Result<std::vector<meta::TrashEntry>> Trash::FindOldestUnder(const Context& context, InodeId quota, uint64_t bytes) {
  std::vector<meta::TrashEntry> oldest;
  uint64_t sum = 0;
  std::string after;
  const auto is_enough = [&] { return !oldest.empty() && sum >= bytes; };
  for (bool is_last = false; !is_last && !is_enough();) {
    CAIRNFS_ASSIGN_OR_RETURN(auto page, at_.names.ListTrash(context, after, kTrashPerPage));
    is_last = page.size() < kTrashPerPage;
    if (!page.empty()) after = page.back().key;
    std::erase_if(page, [&](const meta::TrashEntry& entry) {
      const bool may_count = entry.record.bytes > 0 || entry.record.files > 0;
      return entry.record.type != S_IFDIR || !may_count || entry.parts.inode == quota;
    });
    CAIRNFS_ASSIGN_OR_RETURN(auto under, at_.names.TrashUnder(context, page, quota, kTrashRecordsPerRead));
    for (auto entry = under.begin(); entry != under.end() && !is_enough(); ++entry) {
      sum += entry->record.bytes;
      oldest.push_back(std::move(*entry));
    }
  }
  return oldest;
}

// The time begins once it has the lock: others may clear for long.
Status Trash::ClearSoon(const Context& context, const std::vector<meta::TrashEntry>& first, Emptied& doomed,
                        Emptied& cleared) {
  MutexLock lock(clearing_);
  const Context soon = context.WithStop(stop_.get_token()).WithTimeout(kEmptyAtOnceMax);
  Status done = Doom(soon, first, doomed);
  if (done.ok()) done = Clear(soon, cleared);
  if (!done.ok()) Wake();  // the rest goes in the background
  return done;
}

bool Trash::EmptyOldestUnder(const Context& context, InodeId quota, uint64_t bytes,
                             const std::function<bool()>& is_freed) {
  if (is_read_only_ || IsStopped() || !HoldsAny()) return false;
  // What somebody has emptied already counts until it is removed: no more goes before that.
  Emptied doomed, cleared;
  // As in EmptyOldest: names that go are no reason to look again.
  const auto may_fit = [&](const Status& done) {
    const bool is_cut_short = !done.ok() && done.error().code == ErrorCode::kInterrupted;
    return cleared.bytes > 0 || is_cut_short || is_freed();
  };
  if (may_fit(ClearSoon(context, {}, doomed, cleared))) return true;
  const auto oldest = FindOldestUnder(context, quota, bytes);
  if (!oldest.ok() || oldest->empty() || is_freed()) return is_freed();
  const Status done = ClearSoon(context, *oldest, doomed, cleared);
  spdlog::info("the trash is emptied of the {} oldest directories that count for the quota of inode {}", doomed.entries,
               quota.value);
  return may_fit(done);
}

// Counts what there is, too.
Status Trash::EmptyExpired(const Context& context) {
  const bool may = !is_read_only_ && hooks_.empties_expired();
  const Timestamp now = Clock::WallTime();
  const uint64_t added_before = added_;
  uint64_t entries = 0, bytes = 0;
  size_t damaged = 0;
  std::string after;
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(auto page, at_.names.ListTrash(context, after, kTrashPerPage, &damaged));
    const bool is_last = page.size() < kTrashPerPage;
    if (!page.empty()) after = page.back().key;
    for (const meta::TrashEntry& entry : page) {
      if (may && entry.record.expires <= now) continue;
      entries++;
      bytes += entry.record.bytes;
    }
    std::erase_if(page, [&](const meta::TrashEntry& entry) { return entry.record.expires > now; });
    Emptied expired;
    if (may && !page.empty()) CAIRNFS_RETURN_IF_ERROR(Doom(context, page, expired));
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "it is looked at later");
    if (is_last) break;
  }
  if (damaged > damaged_told_) spdlog::error("{} entries of the trash are damaged, and stay there", damaged);
  damaged_told_ = damaged;
  entries_ = entries;
  bytes_ = bytes;
  added_before_look_ = added_before;
  is_counted_ = true;
  return may ? ClearInBackground(context) : Status();
}

bool Trash::HasToLook() const {
  if (is_read_only_) return false;
  return at_.is_shared || !is_counted_ || entries_ > 0 || added_ != added_before_look_;
}

void Trash::Run() {
  pthread_setname_np(pthread_self(), "cairn-trash");
  const Context context(stop_expiring_.get_token());
  bool clears = false;  // what this host has doomed, whichever host empties what has expired
  while (!context.IsStopped()) {
    const auto began = Clock::Now();
    Status status = HasToLook() ? EmptyExpired(context) : Status();
    if (status.ok() && clears && !is_read_only_) status = ClearInBackground(context);
    const bool is_cut_short = !status.ok() && status.error().code == ErrorCode::kInterrupted;
    if (!status.ok()) spdlog::debug("the trash is not looked at to the end: {}", status.error().message);
    const Clock::duration every = hooks_.empties_expired() ? kTrashLookEvery : kTrashCountEvery;
    const auto pause = is_cut_short ? kTrashGoesOnAfter : std::max(every, kTrashLookShare * (Clock::Now() - began));
    MutexLock lock(mutex_);
    const auto is_woken = [this]() REQUIRES_LOCK(mutex_) { return is_woken_; };
    static_cast<void>(context.WithTimeout(std::chrono::duration_cast<std::chrono::milliseconds>(pause))
                          .Wait(mutex_, wake_, is_woken));
    clears = std::exchange(is_woken_, false) || is_cut_short;
  }
}

}  // namespace cairnfs::fs
