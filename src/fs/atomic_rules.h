// AtomicRules: which files appear whole (docs/commits.md): those whose name matches a pattern of the nearest directory
// above that has some (user.cairnfs.atomic_files). Whether they must be complete, the nearest says that says anything
// about it (user.cairnfs.atomic_complete).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "fs/filesystem.h"
#include "kv/shared_store.h"
#include "meta/namespace.h"
#include "retention/glob.h"

namespace cairnfs::fs {

struct AtomicRule {
  std::vector<retention::Glob> names;
  bool must_be_complete = false;
};
using AtomicRulePtr = std::shared_ptr<const AtomicRule>;  // null: no files

// All functions: any thread.
class AtomicRules {
 public:
  static constexpr size_t kPatternsMax = retention::kGlobsMax;
  static constexpr size_t kRulesMax = 4096;  // directories, of all users; HasShare says how many one user's may be
  // A rule that another host sets counts here after at most this long, and so does one of a directory that another host
  // has moved.
  static constexpr auto kCountsAfter = std::chrono::seconds(1);

  // Both outlive it. `others_move`: other hosts move directories.
  AtomicRules(kv::KvStore& kv, meta::Namespace& names, bool others_move)
      : kv_(kv), names_(names), others_move_(others_move) {}
  // Reads what is set. Once, before any other call.
  Status Start(const Context& context);
  // And what other hosts set from then on.
  Status StartAmongHosts(const Context& context, kv::SharedKvStore& store);
  void Stop() { watch_.reset(); }

  static bool IsAttribute(std::string_view name);
  // No directory has a rule: what nearly every call asks.
  bool AreNone() const { return are_none_; }
  // The rule for files right in the directory. May wait for the store.
  Result<AtomicRulePtr> Of(const Context& context, InodeId directory);
  // Whether a file of this name would appear whole, and its rule.
  Result<AtomicRulePtr> Of(const Context& context, InodeId directory, std::string_view name);
  void NoteMoved() EXCLUDES_LOCK(mutex_);  // this host has moved a directory

  // kNoData, kNotDirectory, kNotFound.
  Result<std::string> Get(const Context& context, InodeId directory, std::string_view attribute);
  // nullopt takes it away. kPermission: neither the owner nor root; kInvalidArgument says what is wrong and what would
  // be right; kAlreadyExists, kNoData (by `mode`, or none is there to take away); kNotDirectory; kBusy: the owner has
  // his share.
  Status Set(const Caller& caller, InodeId directory, std::string_view attribute,
             const std::optional<std::string>& value, meta::Namespace::XattrMode mode);

 private:
  using ByDirectory = std::map<InodeId, meta::AtomicRecord>;
  struct Found {
    AtomicRulePtr rule;
    Clock::time_point at;
  };
  Result<ByDirectory> Read(const Context& context);
  Status Refresh(const Context& context);
  void Take(const kv::KvEvent& event) REQUIRES_LOCK(mutex_);
  void Put(InodeId directory, std::optional<meta::AtomicRecord> record) REQUIRES_LOCK(mutex_);
  void NoteChange() REQUIRES_LOCK(mutex_);
  Status CheckRoom(const Context& context, uint32_t owner) EXCLUDES_LOCK(mutex_);
  // nullopt: the directory has none of its own.
  std::optional<meta::AtomicRecord> Own(InodeId directory) EXCLUDES_LOCK(mutex_);
  Result<AtomicRulePtr> Find(const Context& context, InodeId directory);

  kv::KvStore& kv_;
  meta::Namespace& names_;
  const bool others_move_;
  std::unique_ptr<kv::KvWatch> watch_;
  std::atomic<bool> are_none_{true};
  Mutex mutex_;
  ByDirectory set_ GUARDED_BY(mutex_);
  bool is_unknown_ GUARDED_BY(mutex_) = false;  // events were lost: it is to be read again before it is believed
  std::unordered_map<InodeId, Found> found_ GUARDED_BY(mutex_);  // by directory that was asked for
  uint64_t changes_ GUARDED_BY(mutex_) = 0;                      // of either, so that no answer from before one is kept
};

// The patterns of a value. kInvalidArgument.
Result<std::vector<retention::Glob>> ParseAtomicPatterns(std::string_view value);

}  // namespace cairnfs::fs
