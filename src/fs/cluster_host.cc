#include "fs/cluster_host.h"

#include <algorithm>

#include "base/log.h"
#include "cluster/records.h"

namespace cairnfs::fs {
namespace {

constexpr std::string_view kRetentionKey = "WR";  // under a session's lease: the id of the node that applies policies
constexpr auto kOrphanAnswer = std::chrono::seconds(10);
constexpr auto kOpenAnswer = std::chrono::seconds(5);  // of all hosts
constexpr auto kWord = std::chrono::seconds(1);
constexpr auto kWordPause = std::chrono::milliseconds(50);

cluster::ClusterChunkStore::SyncScope ScopeOf(Durability level) {
  using Scope = cluster::ClusterChunkStore::SyncScope;
  return level == Durability::kLocal ? Scope::kThisNode : Scope::kCopies;
}

}  // namespace

Error SessionLost(std::string_view so) {
  return MakeError(ErrorCode::kIo, "this host lost its session with the cluster: " + std::string(so));
}

Error NoSession() {
  return MakeError(ErrorCode::kUnavailable, "this host has lost its session with the cluster and waits for a new one");
}

Error PublishInDoubt() {
  return MakeError(ErrorCode::kUnavailable, "the metadata does not tell what became of the file's last record");
}

bool IsInDoubt(const Result<uint64_t>& revision) {
  return !revision.ok() && revision.error().code != ErrorCode::kStale && kv::MayHaveRun(revision.error().code);
}

ClusterHost::ClusterHost(const FileSystem::ClusterParts& parts, kv::KvStore& kv, meta::Namespace& names,
                         Durability durability)
    : parts_(parts),
      kv_(kv),
      levels_(kv, names, durability),
      self_(parts.membership.self().AsKey()),
      epochs_(parts.store, parts.membership) {}

Result<ClusterHost::Unreadable> ClusterHost::SyncReadableChunks(const Context& context, Durability level) {
  return parts_.chunks.SyncReadable(context.WithDeadline(syncs_end_.load()), ScopeOf(level));
}

Result<ClusterHost::Unreadable> ClusterHost::SyncOnly(const Context& context, Durability level,
                                                      std::span<const Digest> chunks) {
  return parts_.chunks.SyncOnly(context.WithDeadline(syncs_end_.load()), ScopeOf(level), chunks);
}

Status ClusterHost::BeginSession() {
  CAIRNFS_ASSIGN_OR_RETURN(const cluster::Membership::Session session, parts_.membership.session());
  if (session_key_.empty()) session_key_ = session.key;
  MutexLock lock(mutex_);
  session_.store(session.revision, std::memory_order_release);
  session_begun_.NotifyAll();
  return {};
}

bool ClusterHost::AwaitSession(const Context& context) {
  MutexLock lock(mutex_);
  return context.Wait(mutex_, session_begun_, [this] { return session() != 0; });
}

Status ClusterHost::BeginEpoch(const Context& context) {
  MutexLock lock(epoch_mutex_);
  CAIRNFS_ASSIGN_OR_RETURN(const uint64_t epoch, epochs_.ReadEpoch(context));
  if (epoch == epoch_) return {};
  parts_.chunks.BeginEpoch();
  if (on_epoch_) on_epoch_();
  epoch_.store(epoch, std::memory_order_release);
  return {};
}

void ClusterHost::ForgetEpoch() {
  MutexLock lock(epoch_mutex_);
  parts_.chunks.BeginEpoch();
}

void ClusterHost::NoteReferenced(std::span<const store::ChunkPin> pins) {
  std::vector<Digest> chunks;
  for (const store::ChunkPin& pin : pins) chunks.push_back(pin.digest());
  parts_.chunks.NoteReferenced(chunks);
}

bool ClusterHost::Lives(const meta::Mark& mark) const {
  const uint64_t marked_under = mark.record.session;
  if (IsOwn(mark)) return marked_under == session();
  const cluster::ViewPtr view = parts_.membership.view();
  if (marked_under > view->revision) return true;
  const auto id = cluster::NodeId::FromKey(mark.node);
  const cluster::NodeInfo* info = id ? view->Find(*id) : nullptr;
  return info != nullptr && info->session == marked_under;
}

Status ClusterHost::AwaitWord(const Context& context, const meta::Mark& mark) {
  const auto id = cluster::NodeId::FromKey(mark.node);
  // The store may grant more time than was asked for, and gives each lease its time anew when it is started.
  const Context patience = context.WithTimeout(3 * parts_.lease + kOpenAnswer);
  const auto answers = [&] { return id && parts_.peers.HoldOrphans(patience.WithTimeout(kWord), *id, {}).ok(); };
  while (Lives(mark) && !answers() && patience.Sleep(kWordPause)) continue;
  if (!context.Expired()) return {};
  return MakeError(ErrorCode::kInterrupted, "host " + NameOf(mark.node) + " has not answered");
}

void ClusterHost::AddSessionCompare(kv::Transaction& transaction, const meta::Mark& mark) {
  const auto id = cluster::NodeId::FromKey(mark.node);
  if (id) transaction.IfRevision(cluster::SessionKey(*id), mark.record.session);
}

void ClusterHost::NoteMarks(const meta::FileState& state, SharedContent& shared) const {
  shared.others_marks = state.marks;
  std::erase_if(shared.others_marks, [&](const meta::Mark& mark) {
    const bool is_of_now = IsOwn(mark) && Lives(mark);
    // Perhaps of a call whose answer was lost: the next publish takes it away.
    if (is_of_now) shared.is_marked = true;
    return is_of_now;
  });
}

void ClusterHost::AddMark(kv::Transaction& transaction, InodeId inode, uint64_t session,
                          const std::string& failure) const {
  transaction.Put(meta::MarkKey(inode, self_, session), meta::UnpublishedMark{session, failure}.Encode());
}

std::string ClusterHost::NameOf(std::string_view node) const {
  auto id = cluster::NodeId::FromKey(node);
  if (!id) return "?";
  const cluster::ViewPtr view = parts_.membership.view();
  const cluster::NodeInfo* info = view->Find(*id);
  return info == nullptr || info->name.empty() ? id->ToHex() : info->name;
}

Result<std::vector<cluster::NodeId>> ClusterHost::OthersWithSession(const Context& context) {
  std::vector<cluster::NodeId> others;
  CAIRNFS_ASSIGN_OR_RETURN(auto members, kv_.Range(context, cluster::MembersBegin(), cluster::MembersEnd(), 0));
  for (const kv::KvEntry& entry : members.entries) {
    const auto key = cluster::ParseMemberKey(entry.key);
    if (!key || key->kind != cluster::MemberKey::kSession || key->id.AsKey() == self_) continue;
    others.push_back(key->id);
  }
  return others;
}

bool ClusterHost::IsFirstUp() const {
  const auto view = parts_.membership.view();
  const cluster::NodeInfo* first = view->FirstUp();
  return first != nullptr && first->id.AsKey() == self_;
}

Result<bool> ClusterHost::TakeRetention(const Context& context) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto taken, parts_.store.Get(context, kRetentionKey));
  if (taken) return taken->value == self_;
  CAIRNFS_ASSIGN_OR_RETURN(const cluster::Membership::Session session, parts_.membership.session());
  kv::Transaction transaction;
  transaction.IfAbsent(std::string(kRetentionKey));
  transaction.writes.push_back({std::string(kRetentionKey), self_, session.lease});
  const auto committed = parts_.store.Commit(context, transaction);
  if (committed.ok()) spdlog::info("this host applies policies of retention from now on");
  if (!committed.ok() && committed.error().code == ErrorCode::kConflict) return false;
  return committed.ok() ? Result<bool>(true) : Result<bool>(committed.error());
}

Result<bool> ClusterHost::LeaveRetention(const Context& context) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto taken, parts_.store.Get(context, kRetentionKey));
  if (!taken || taken->value != self_) return false;
  kv::Transaction transaction;
  const std::string key(kRetentionKey);
  CAIRNFS_RETURN_IF_ERROR(parts_.store.Commit(context, transaction.IfRevision(key, taken->revision).Delete(key)));
  spdlog::info("this host is read-only, and leaves policies of retention to others");
  return false;
}

Result<std::vector<bool>> ClusterHost::HeldElsewhere(const Context& context, const std::vector<InodeId>& inodes) {
  std::vector<bool> held(inodes.size(), false);
  // The view may lag behind a node that has just joined, and has opened the file since.
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<cluster::NodeId> others, OthersWithSession(context));
  for (const cluster::NodeId& node : others) {
    CAIRNFS_ASSIGN_OR_RETURN(std::vector<bool> there,
                             parts_.peers.HoldOrphans(context.WithTimeout(kOrphanAnswer), node, inodes));
    for (size_t i = 0; i < held.size() && i < there.size(); i++) held[i] = held[i] || there[i];
  }
  return held;
}

Result<std::vector<InodeId>> ClusterHost::AskOne(const Context& context, const cluster::NodeId& node,
                                                 cluster::OpenWhat what) {
  for (;;) {
    auto there = parts_.peers.OpenFiles(context.WithTimeout(kOpenAnswer), node, what);
    if (there.ok() || there.error().code != ErrorCode::kUnavailable) return there;
    const auto others = OthersWithSession(context.WithoutDeadline().WithTimeout(kWord));
    const bool has_ended = others.ok() && std::find(others->begin(), others->end(), node) == others->end();
    if (has_ended) return std::vector<InodeId>();
    if (!context.Sleep(kWordPause)) return there;
  }
}

Status ClusterHost::AskWhatIsOpen(const Context& context, cluster::OpenWhat what, const TakeOpen& take) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<cluster::NodeId> others, OthersWithSession(context));
  // Who seals waits until a host that has died has no session any more.
  const Context patience =
      context.WithTimeout(what == cluster::OpenWhat::kPlaces ? kOpenAnswer : kOpenAnswer + parts_.lease);
  for (const cluster::NodeId& node : others) {
    const auto there = AskOne(patience, node, what);
    if (!there.ok()) {
      const std::string why = "host " + NameOf(node.AsKey()) + " does not say which files it has open: ";
      return MakeError(ErrorCode::kUnavailable, why + there.error().message);
    }
    for (const InodeId inode : *there) take(node, inode);
  }
  return {};
}

Result<std::vector<InodeId>> ClusterHost::OpenElsewhere(const Context& context) {
  std::vector<InodeId> places;
  CAIRNFS_RETURN_IF_ERROR(AskWhatIsOpen(context, cluster::OpenWhat::kPlaces,
                                        [&](const cluster::NodeId&, InodeId place) { places.push_back(place); }));
  return places;
}

Result<std::vector<Seals::Writer>> ClusterHost::WritersElsewhere(const Context& context, cluster::OpenWhat what) {
  std::vector<Seals::Writer> writers;
  CAIRNFS_RETURN_IF_ERROR(AskWhatIsOpen(context, what, [&](const cluster::NodeId& node, InodeId inode) {
    writers.push_back({NameOf(node.AsKey()), inode});
  }));
  return writers;
}

}  // namespace cairnfs::fs
