#include "kv/lease_table.h"

#include "base/clock.h"
#include "base/coding.h"
#include "kv/local_store_format.h"

namespace cairnfs::kv {

Status LeaseTable::Load(KvEngine& engine) {
  const Clock::time_point now = Clock::Now();
  std::map<LeaseId, Lease> leases;
  std::unordered_map<std::string, LeaseId> lease_of_key;
  Status decoded;
  auto visit_lease = [&](std::string_view key, std::string_view value) {
    Decoder id_decoder(key.substr(1)), ttl_decoder(value);
    const LeaseId id = id_decoder.BigEndianU64();
    const std::chrono::milliseconds ttl(ttl_decoder.U64());
    if (!id_decoder.Finished() || !ttl_decoder.Finished()) {
      decoded = MakeError(ErrorCode::kCorrupt, "the record of a lease (a key with 'L') does not decode");
      return false;
    }
    leases.emplace(id, Lease{ttl, now + ttl, false, {}});
    return true;
  };
  CAIRNFS_RETURN_IF_ERROR(engine.Scan(kLeasesBegin, kLeasesEnd, nullptr, visit_lease));
  CAIRNFS_RETURN_IF_ERROR(decoded);
  auto visit_attachment = [&](std::string_view key, std::string_view) {
    Decoder decoder(key.substr(1));
    auto lease = leases.find(decoder.BigEndianU64());
    std::string engine_key(decoder.Rest());
    if (!decoder.ok() || lease == leases.end() || !lease_of_key.emplace(engine_key, lease->first).second) {
      decoded = MakeError(ErrorCode::kCorrupt, "an attachment to a lease (a key with 'A') names no lease, or a second");
      return false;
    }
    lease->second.keys.insert(std::move(engine_key));
    return true;
  };
  CAIRNFS_RETURN_IF_ERROR(engine.Scan(kAttachmentsBegin, kAttachmentsEnd, nullptr, visit_attachment));
  CAIRNFS_RETURN_IF_ERROR(decoded);
  MutexLock lock(mutex_);
  leases_ = std::move(leases);
  lease_of_key_ = std::move(lease_of_key);
  return {};
}

void LeaseTable::Add(LeaseId lease, std::chrono::milliseconds ttl) {
  MutexLock lock(mutex_);
  leases_.emplace(lease, Lease{ttl, Clock::Now() + ttl, false, {}});
}

void LeaseTable::Remove(LeaseId lease) {
  MutexLock lock(mutex_);
  auto found = leases_.find(lease);
  if (found == leases_.end()) return;
  for (const std::string& key : found->second.keys) lease_of_key_.erase(key);
  leases_.erase(found);
}

void LeaseTable::Attach(const std::string& engine_key, LeaseId lease) {
  MutexLock lock(mutex_);
  if (auto before = lease_of_key_.find(engine_key); before != lease_of_key_.end()) {
    if (auto found = leases_.find(before->second); found != leases_.end()) found->second.keys.erase(engine_key);
    lease_of_key_.erase(before);
  }
  auto found = leases_.find(lease);
  if (found == leases_.end()) return;
  found->second.keys.insert(engine_key);
  lease_of_key_.emplace(engine_key, lease);
}

const LeaseTable::Lease* LeaseTable::Find(LeaseId lease) const {
  auto found = leases_.find(lease);
  return found == leases_.end() ? nullptr : &found->second;
}

bool LeaseTable::Lives(LeaseId lease) const {
  MutexLock lock(mutex_);
  const Lease* found = Find(lease);
  return found != nullptr && !found->is_ending;
}

bool LeaseTable::Knows(LeaseId lease) const {
  MutexLock lock(mutex_);
  return Find(lease) != nullptr;
}

LeaseId LeaseTable::LeaseOf(const std::string& engine_key) const {
  MutexLock lock(mutex_);
  auto found = lease_of_key_.find(engine_key);
  return found == lease_of_key_.end() ? 0 : found->second;
}

std::set<std::string> LeaseTable::KeysOf(LeaseId lease) const {
  MutexLock lock(mutex_);
  const Lease* found = Find(lease);
  return found == nullptr ? std::set<std::string>() : found->keys;
}

Result<std::chrono::milliseconds> LeaseTable::KeepAlive(LeaseId lease) {
  MutexLock lock(mutex_);
  auto found = leases_.find(lease);
  const Clock::time_point now = Clock::Now();
  // A lease that is past its time and not taken yet may live on: its keys are all there.
  if (found == leases_.end() || found->second.is_ending) {
    return MakeError(ErrorCode::kNotFound, "the lease has ended");
  }
  found->second.deadline = now + found->second.ttl;
  return found->second.ttl;
}

std::vector<LeaseId> LeaseTable::TakeExpired(Clock::time_point now) {
  MutexLock lock(mutex_);
  std::vector<LeaseId> expired;
  for (auto& [id, lease] : leases_) {
    if (lease.deadline > now && !lease.is_ending) continue;
    lease.is_ending = true;
    expired.push_back(id);
  }
  return expired;
}

void LeaseTable::ExtendAll() {
  MutexLock lock(mutex_);
  for (auto& [id, lease] : leases_) lease.deadline = Clock::Now() + lease.ttl;
}

}  // namespace cairnfs::kv
