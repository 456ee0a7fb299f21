// QuotaSettings: sets quotas of directories, takes them off, and tells of them (docs/operating.md, "Quotas").
#pragma once

#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fs/quota_walk.h"

namespace cairnfs::fs {

std::string_view NameOf(meta::QuotaRecord::State state);  // "on", "being set", "being taken off"

struct QuotaRequest {
  InodeId directory;
  // Limits; nullopt: stays as it is, or none. QuotaRecord::kNoLimit takes one off.
  std::optional<uint64_t> logical_bytes = {}, unique_bytes = {};
  bool may_be_below_use = false;
};

struct QuotaReport {
  InodeId directory;
  std::string path;  // below the root; "#" and its inode's number where that is not known
  meta::QuotaRecord record;
  meta::QuotaBytes used;  // by what is published
};

// All functions: any thread.
class QuotaSettings {
 public:
  // Told how many inodes it has looked at, or moved. False: whoever asked is gone.
  using Progress = std::function<bool(uint64_t inodes)>;

  // `kv`: the one of the names, in a cluster the fenced one.
  QuotaSettings(const Services& services, kv::KvStore& kv) : at_(services), kv_(kv) {}
  ~QuotaSettings() { Stop(); }
  // Goes on, in the background, with what an earlier process has begun.
  void Start();
  void Stop();

  // Sets a quota, or changes its limits; returns once all that lies below counts. kInvalidArgument, with a sentence:
  // the root, no directory, no limit is left, in or above another quota, below what is used, a file below that has a
  // name elsewhere. kNotDirectory, kNotFound. kBusy: it is being taken off, or changed on another host. kPermission: a
  // mount that is read-only.
  Status Set(const Context& context, const QuotaRequest& request, const Progress& progress);
  // kNotFound: it has none. May be called again after it has failed.
  Status TakeOff(const Context& context, InodeId directory, const Progress& progress);

  // The first `count_max` of them; the paths of no more are looked for.
  std::vector<QuotaReport> All(const Context& context, size_t count_max = SIZE_MAX) const;
  // The quota that the inode falls under, as JSON. kNoData: under none.
  Result<std::string> Describe(const Caller& caller, InodeId inode) const;
  // `exact`, as everybody may see it, and bounded by the quota that the inode falls under: what is left of that is
  // exact, as whoever sees its directory may know it, and what is left of the disk never.
  FsSpace Bounded(const Context& context, InodeId inode, const FsSpace& exact) const;

 private:
  Status CheckPlace(const Context& context, InodeId directory) const;
  // The directories above it, the nearest first, without the root.
  Result<std::vector<InodeId>> Above(const Context& context, InodeId directory) const;
  static Status CheckLimits(const QuotaRequest& request, const meta::QuotaBytes& used);
  Status SetNew(const Context& context, const QuotaRequest& request, const Progress& progress);
  Status ChangeLimits(const Context& context, const QuotaRequest& request, const Progress& progress);
  Status Give(const Context& context, InodeId directory, const Progress& progress);
  Status GiveHere(const Context& context, InodeId directory, const Progress& progress);
  Status Take(const Context& context, InodeId directory, const Progress& progress);
  Status TakeHere(const Context& context, InodeId directory, const Progress& progress);
  // `here`, unless another host has done it meanwhile: then the directory's quota is in this state, or gone (nullopt).
  Status UnlessDone(const Context& context, InodeId directory, std::optional<meta::QuotaRecord::State> state,
                    Status here);
  Status Put(const Context& context, InodeId directory, const std::optional<meta::QuotaRecord>& record,
             uint64_t revision);
  QuotaWalk::GoOn GoesOnWhile(InodeId directory, meta::QuotaRecord::State state, const Progress& progress) const;
  void GoOn();

  const Services at_;
  kv::KvStore& kv_;
  std::stop_source stop_;
  Mutex changing_;  // held while one is set or taken off
  std::thread going_on_;
};

}  // namespace cairnfs::fs
