#include "fs/cluster_host.h"

#include <algorithm>
#include <future>
#include <system_error>

#include "cluster/records.h"
#include "kv/patience.h"

namespace cairnfs::fs {
namespace {

constexpr auto kAskFor = std::chrono::seconds(3);
constexpr auto kLookEvery = std::chrono::seconds(1);  // whether a node that does not answer has published
constexpr auto kOrphanAnswer = std::chrono::seconds(10);

}  // namespace

Error SessionLost(std::string_view so) {
  return MakeError(ErrorCode::kIo, "this host lost its session with the cluster: " + std::string(so));
}

Error NoSession() {
  return MakeError(ErrorCode::kUnavailable, "this host has lost its session with the cluster and waits for a new one");
}

Error Unanswered() {
  return MakeError(ErrorCode::kUnavailable, "the metadata does not tell what became of the file's last record");
}

bool IsForsaken(const Caller& caller) {
  return (caller.cancelled && caller.cancelled()) || kv::Patience::IsWaitOver(nullptr);
}

Error Forsaken() { return MakeError(ErrorCode::kInterrupted, "the caller was killed while it waited"); }

ClusterHost::ClusterHost(const FileSystem::ClusterParts& parts, kv::KvStore& kv, meta::Namespace& names,
                         Durability durability)
    : parts_(parts), kv_(kv), levels_(kv, names, durability), self_(parts.membership.self().AsKey()) {}

Result<cluster::ClusterChunkStore::Unreadable> ClusterHost::SyncReadableChunks(Durability level,
                                                                               const SyncLimits& limits) {
  using Scope = cluster::ClusterChunkStore::SyncScope;
  return parts_.chunks.SyncReadable(level == Durability::kLocal ? Scope::kThisNode : Scope::kCopies, limits);
}

Status ClusterHost::BeginSession() {
  CAIRNFS_ASSIGN_OR_RETURN(const cluster::Membership::Session session, parts_.membership.session());
  if (session_key_.empty()) session_key_ = session.key;
  session_.store(session.revision, std::memory_order_release);
  return {};
}

void ClusterHost::OweCopies(std::span<const store::ChunkPin> pins) {
  std::vector<Digest> chunks;
  for (const store::ChunkPin& pin : pins) chunks.push_back(pin.digest());
  parts_.chunks.Owe(chunks);
}

bool ClusterHost::Lives(const meta::Pending& pending) const {
  if (IsOwn(pending)) return pending.record.session == session();
  return LivesSession(pending.node, pending.record.session);
}

bool ClusterHost::LivesSession(std::string_view node, uint64_t session) const {
  const cluster::ViewPtr view = parts_.membership.view();
  if (session > view->revision) return true;
  auto id = cluster::NodeId::FromKey(node);
  const cluster::NodeInfo* info = id ? view->Find(*id) : nullptr;
  return info != nullptr && info->session == session;
}

void ClusterHost::NotePending(const meta::FileState& state, SharedContent& shared) const {
  // One that was put since the look is newer.
  const bool own_is_newer = shared.pending_revision > state.revision;
  std::erase_if(shared.lost, [&](const LostBytes& bytes) { return bytes.node != self_ || !own_is_newer; });
  uint64_t own_revision = 0;
  meta::PendingRecord told;
  for (const meta::Pending& pending : state.pending) {
    if (IsOwn(pending) && own_is_newer) continue;
    const bool lives = Lives(pending);
    if (IsOwn(pending) && lives) {
      own_revision = pending.revision;
      told = pending.record;
    }
    // What another's living session knows of an earlier one it tells by itself once it has published.
    auto bytes = lives && !IsOwn(pending) ? std::nullopt : LostBytes::Of(pending, lives);
    if (bytes) shared.lost.push_back(std::move(*bytes));
  }
  if (own_is_newer) return;
  shared.pending_revision = own_revision;
  shared.told = std::move(told);
}

std::string ClusterHost::NameOf(std::string_view node) const {
  auto id = cluster::NodeId::FromKey(node);
  if (!id) return "?";
  const cluster::ViewPtr view = parts_.membership.view();
  const cluster::NodeInfo* info = view->Find(*id);
  return info == nullptr || info->name.empty() ? id->ToHex() : info->name;
}

Result<std::vector<cluster::NodeId>> ClusterHost::OthersWithSession() {
  std::vector<cluster::NodeId> others;
  CAIRNFS_ASSIGN_OR_RETURN(auto members, kv_.Range(cluster::MembersBegin(), cluster::MembersEnd(), 0));
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

std::vector<ClusterHost::Failure> ClusterHost::FinishAt(const std::string& node, const WorkOfNode& work,
                                                        const FinishOptions& options) {
  std::vector<InodeId> inodes(work.inodes.begin(), work.inodes.end());
  std::string why = "it did not answer in time";
  const std::string name = NameOf(node);
  const auto id = cluster::NodeId::FromKey(node);
  bool is_gone = !id.has_value();
  std::chrono::steady_clock::time_point look_at{};
  while (!is_gone && std::chrono::steady_clock::now() < options.deadline) {
    if ((options.cancelled && options.cancelled()) || kv::Patience::IsWaitOver(nullptr)) break;
    // A call is short, so that who asks notices soon that the node is gone, or that nobody waits any more. What the
    // node has begun for it goes on.
    const auto deadline = std::min(options.deadline, std::chrono::steady_clock::now() + kAskFor);
    auto failures = parts_.peers.FinishFiles(*id, inodes, deadline);
    if (failures.ok()) {
      std::vector<Failure> told;
      for (auto& failure : *failures) {
        failure.why = "host " + name + ": " + failure.why;
        told.push_back({node, std::move(failure), false});
      }
      return told;
    }
    why = failures.error().message;
    // It publishes by itself, and others may reach it that this host does not.
    if (options.cancelled && options.cancelled()) break;
    // Where the lease holds the store answers.
    if (const auto now = std::chrono::steady_clock::now(); now >= look_at && parts_.membership.LeaseHolds()) {
      inodes = NotPublished(node, std::move(inodes));
      if (inodes.empty()) return {};
      look_at = now + kLookEvery;
    }
    is_gone = !LivesSession(node, work.session);
    if (!is_gone) static_cast<void>(kv::Patience::Sleep(nullptr, kAskAgain));
  }
  // It may have published all it had before it left.
  if (is_gone && id && parts_.membership.LeaseHolds()) inodes = NotPublished(node, std::move(inodes));
  why =
      is_gone ? "host " + name + " is down, and its bytes of the file were not safe yet" : "host " + name + ": " + why;
  std::vector<Failure> told;
  for (InodeId inode : inodes) told.push_back({node, {inode, "", why}, is_gone});
  return told;
}

std::vector<InodeId> ClusterHost::NotPublished(const std::string& node, std::vector<InodeId> inodes) {
  std::vector<std::string> keys;
  for (InodeId inode : inodes) keys.push_back(meta::PendingKey(inode, node));
  std::vector<InodeId> left;
  auto take = [&](size_t i, const kv::KvEntry* entry) -> Status {
    if (entry != nullptr) left.push_back(inodes[i]);
    return {};
  };
  if (!kv::ReadKeys(kv_, keys, kKeysPerRead, take).ok()) return inodes;
  return left;
}

std::vector<ClusterHost::Failure> ClusterHost::Finish(const Work& work, const FinishOptions& options) {
  std::vector<std::future<std::vector<Failure>>> answers;
  for (const auto& [node, of_node] : work) {
    auto ask = [this, &options, &node = node, &of_node = of_node, patience = kv::Patience::Current()] {
      const kv::Patience::OfThread as_the_caller(patience);
      return FinishAt(node, of_node, options);
    };
    // One node is asked on the caller's own thread, and so are those for which the system gives no other.
    bool has_thread = work.size() > 1;
    if (has_thread) {
      try {
        answers.push_back(std::async(std::launch::async, ask));
      } catch (const std::system_error&) {
        has_thread = false;
      }
    }
    if (!has_thread) answers.push_back(std::async(std::launch::deferred, ask));
  }
  std::vector<Failure> failures;
  for (auto& answer : answers) {
    for (Failure& failure : answer.get()) failures.push_back(std::move(failure));
  }
  return failures;
}

Result<std::vector<bool>> ClusterHost::HeldElsewhere(const std::vector<InodeId>& inodes) {
  std::vector<bool> held(inodes.size(), false);
  // The view may lag behind a node that has just joined, and has opened the file since.
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<cluster::NodeId> others, OthersWithSession());
  for (const cluster::NodeId& node : others) {
    const auto deadline = std::chrono::steady_clock::now() + kOrphanAnswer;
    CAIRNFS_ASSIGN_OR_RETURN(std::vector<bool> there, parts_.peers.HoldOrphans(node, inodes, deadline));
    for (size_t i = 0; i < held.size() && i < there.size(); i++) held[i] = held[i] || there[i];
  }
  return held;
}

}  // namespace cairnfs::fs
