#include "fs/atomic_rules.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/fair_share.h"
#include "base/log.h"
#include "cairnfs/cairnfs.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

constexpr std::string_view kFiles = CAIRNFS_XATTR_ATOMIC_FILES;
constexpr std::string_view kComplete = CAIRNFS_XATTR_ATOMIC_COMPLETE;
constexpr std::string_view kBlanks = " \t\n";
constexpr size_t kValueBytesMax = AtomicRules::kPatternsMax * (retention::kGlobBytesMax + 1);
constexpr size_t kRuleLevelsMax = 4096;
constexpr size_t kFoundMax = 10'000;  // directories; beyond that all are forgotten

Status CheckValue(std::string_view attribute, std::string_view value) {
  if (attribute == kFiles) {
    const auto patterns = ParseAtomicPatterns(value);
    return patterns.ok() ? Status() : Status(patterns.error());
  }
  if (value == "0" || value == "1") return {};
  return MakeError(ErrorCode::kInvalidArgument, "the value is 1, or 0: files may be cut short");
}

std::optional<std::string> ValueOf(const meta::AtomicRecord& record, std::string_view attribute) {
  if (attribute == kFiles) return record.patterns;
  if (!record.must_be_complete) return std::nullopt;
  return std::string(*record.must_be_complete ? "1" : "0");
}

void SetValue(meta::AtomicRecord& record, std::string_view attribute, const std::optional<std::string>& value) {
  if (attribute == kFiles) {
    record.patterns = value;
  } else {
    record.must_be_complete = value ? std::optional(*value == "1") : std::nullopt;
  }
}

}  // namespace

Result<std::vector<retention::Glob>> ParseAtomicPatterns(std::string_view value) {
  if (value.size() > kValueBytesMax) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the patterns have at most " + std::to_string(kValueBytesMax) + " bytes");
  }
  std::vector<std::string> patterns;
  for (size_t at = 0;;) {
    at = value.find_first_not_of(kBlanks, at);
    if (at == std::string_view::npos) break;
    const size_t end = std::min(value.find_first_of(kBlanks, at), value.size());
    patterns.emplace_back(value.substr(at, end - at));
    at = end;
  }
  return retention::ParseGlobs(patterns);
}

bool AtomicRules::IsAttribute(std::string_view name) { return name == kFiles || name == kComplete; }

Result<AtomicRules::ByDirectory> AtomicRules::Read(const Context& context) {
  const std::string prefix = meta::AtomicsPrefix();
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange range, kv_.Range(context, prefix, kv::PrefixEnd(prefix), 0));
  ByDirectory set;
  for (const kv::KvEntry& entry : range.entries) {
    const auto directory = meta::InodeOfAtomicKey(entry.key);
    auto record = meta::AtomicRecord::Decode(entry.value);
    if (directory && record.ok()) {
      set.emplace(*directory, *std::move(record));
    } else {
      spdlog::error("a rule of files that appear whole does not decode, and counts for nothing");
    }
  }
  return set;
}

// What is told while it reads is newer.
Status AtomicRules::Refresh(const Context& context) {
  for (;;) {
    uint64_t changes = 0;
    {
      MutexLock lock(mutex_);
      changes = changes_;
    }
    CAIRNFS_ASSIGN_OR_RETURN(ByDirectory set, Read(context));
    MutexLock lock(mutex_);
    if (changes != changes_) continue;
    set_ = std::move(set);
    is_unknown_ = false;
    NoteChange();
    return {};
  }
}

void AtomicRules::NoteChange() {
  are_none_ = set_.empty() && !is_unknown_;
  found_.clear();
  changes_++;
}

Status AtomicRules::Start(const Context& context) { return Refresh(context); }

void AtomicRules::Take(const kv::KvEvent& event) {
  const auto directory = meta::InodeOfAtomicKey(event.key);
  if (!directory) return;
  auto record = event.value ? std::optional(meta::AtomicRecord::Decode(*event.value)) : std::nullopt;
  Put(*directory, record && record->ok() ? std::optional(**std::move(record)) : std::nullopt);
}

void AtomicRules::Put(InodeId directory, std::optional<meta::AtomicRecord> record) {
  set_.erase(directory);
  if (record) set_.emplace(directory, *std::move(record));
}

Status AtomicRules::StartAmongHosts(const Context& context, kv::SharedKvStore& store) {
  kv::WatchCallbacks callbacks;
  callbacks.changed = [this](const std::vector<kv::KvEvent>& events, uint64_t) {
    MutexLock lock(mutex_);
    for (const kv::KvEvent& event : events) Take(event);
    NoteChange();
  };
  callbacks.lost = [this](uint64_t) {
    MutexLock lock(mutex_);
    is_unknown_ = true;
    NoteChange();
  };
  const std::string prefix = meta::AtomicsPrefix();
  CAIRNFS_ASSIGN_OR_RETURN(watch_, store.Watch(context, prefix, kv::PrefixEnd(prefix), 0, std::move(callbacks)));
  // What comes after the watch has begun is told; what was before is read.
  return Refresh(context);
}

void AtomicRules::NoteMoved() {
  if (are_none_) return;
  MutexLock lock(mutex_);
  NoteChange();
}

std::optional<meta::AtomicRecord> AtomicRules::Own(InodeId directory) {
  MutexLock lock(mutex_);
  const auto at = set_.find(directory);
  return at == set_.end() ? std::nullopt : std::optional(at->second);
}

// Patterns and completeness are each looked for on the way up.
Result<AtomicRulePtr> AtomicRules::Find(const Context& context, InodeId directory) {
  std::optional<std::string> patterns;
  std::optional<bool> complete;
  for (size_t level = 0; level < kRuleLevelsMax; level++) {
    if (const auto own = Own(directory)) {
      if (!patterns) patterns = own->patterns;
      if (!complete) complete = own->must_be_complete;
      if (patterns && complete) break;
    }
    if (directory == kRootInode) break;
    CAIRNFS_ASSIGN_OR_RETURN(directory, names_.ParentOf(context, directory));
  }
  if (!patterns) return AtomicRulePtr();
  CAIRNFS_ASSIGN_OR_RETURN(auto globs, ParseAtomicPatterns(*patterns));
  if (globs.empty()) return AtomicRulePtr();
  auto rule = std::make_shared<AtomicRule>();
  rule->names = std::move(globs);
  rule->must_be_complete = complete.value_or(false);
  return AtomicRulePtr(std::move(rule));
}

Result<AtomicRulePtr> AtomicRules::Of(const Context& context, InodeId directory) {
  if (are_none_) return AtomicRulePtr();
  bool is_unknown = false;
  {
    MutexLock lock(mutex_);
    is_unknown = is_unknown_;
  }
  if (is_unknown) CAIRNFS_RETURN_IF_ERROR(Refresh(context));
  uint64_t changes = 0;
  const auto now = Clock::Now();
  {
    MutexLock lock(mutex_);
    const auto found = found_.find(directory);
    if (found != found_.end() && (!others_move_ || now - found->second.at < kCountsAfter)) return found->second.rule;
    changes = changes_;
  }
  CAIRNFS_ASSIGN_OR_RETURN(AtomicRulePtr rule, Find(context, directory));
  MutexLock lock(mutex_);
  if (changes != changes_) return rule;
  if (found_.size() >= kFoundMax) found_.clear();
  found_.insert_or_assign(directory, Found{rule, now});
  return rule;
}

Result<AtomicRulePtr> AtomicRules::Of(const Context& context, InodeId directory, std::string_view name) {
  if (are_none_ || retention::IsGoingName(name)) return AtomicRulePtr();
  CAIRNFS_ASSIGN_OR_RETURN(AtomicRulePtr rule, Of(context, directory));
  if (rule == nullptr || !retention::MatchesAny(rule->names, name)) return AtomicRulePtr();
  return rule;
}

Result<std::string> AtomicRules::Get(const Context& context, InodeId directory, std::string_view attribute) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto entry, kv_.Get(context, meta::AtomicKey(directory)));
  std::optional<std::string> value;
  if (entry) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto record, meta::AtomicRecord::Decode(entry->value));
    value = ValueOf(record, attribute);
  }
  if (!value) return MakeError(ErrorCode::kNoData, "the directory has none of its own");
  return *value;
}

// Hosts that set some at the same time may go past the share by these. As long as a third is free, nobody has more than
// his.
Status AtomicRules::CheckRoom(const Context& context, uint32_t owner) {
  std::vector<InodeId> directories;
  {
    MutexLock lock(mutex_);
    if (HasShare(set_.size(), set_.size(), kRulesMax)) return {};
    for (const auto& [directory, record] : set_) directories.push_back(directory);
  }
  size_t own = 0;
  for (const InodeId directory : directories) {
    const auto attr = names_.GetAttr(context, directory);
    if (!attr.ok() && attr.error().code != ErrorCode::kNotFound) return attr.error();
    if (attr.ok() && attr->uid == owner) own++;
  }
  if (HasShare(own, directories.size(), kRulesMax)) return {};
  return MakeError(ErrorCode::kBusy,
                   "user " + std::to_string(owner) + " has " + std::to_string(own) +
                       " directories with such a rule, and there is room for no more: set it for one above them");
}

Status AtomicRules::Set(const Caller& caller, InodeId directory, std::string_view attribute,
                        const std::optional<std::string>& value, meta::Namespace::XattrMode mode) {
  using Mode = meta::Namespace::XattrMode;
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, names_.GetAttr(caller.context, directory));
  if (!S_ISDIR(attr.mode)) {
    return MakeError(ErrorCode::kNotDirectory, "it is set for a directory, and counts for all that is below it");
  }
  if (caller.uid != 0 && caller.uid != attr.uid) {
    return MakeError(ErrorCode::kPermission, "only the owner of the directory and root may do that");
  }
  if (value) CAIRNFS_RETURN_IF_ERROR(CheckValue(attribute, *value));
  const std::string key = meta::AtomicKey(directory);
  constexpr int kAttemptsMax = 100;
  for (int attempt = 0; attempt < kAttemptsMax; attempt++) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto entry, kv_.Get(caller.context, key));
    meta::AtomicRecord record;
    if (entry) {
      CAIRNFS_ASSIGN_OR_RETURN(record, meta::AtomicRecord::Decode(entry->value));
    }
    const bool is_set = ValueOf(record, attribute).has_value();
    if (is_set && mode == Mode::kCreate) return MakeError(ErrorCode::kAlreadyExists, "it is set already");
    if (!is_set && (mode == Mode::kReplace || !value)) return MakeError(ErrorCode::kNoData, "it is not set");
    if (!entry) CAIRNFS_RETURN_IF_ERROR(CheckRoom(caller.context, attr.uid));
    SetValue(record, attribute, value);
    const bool is_left = record.patterns || record.must_be_complete;
    kv::Transaction transaction;
    transaction.IfExists(meta::InodeKey(directory)).IfRevision(key, entry ? entry->revision : 0);
    if (value) transaction.makes_names_for = caller.uid;
    if (is_left) {
      transaction.Put(key, record.Encode());
    } else {
      transaction.Delete(key);
    }
    const auto committed = kv_.Commit(caller.context, transaction);
    // What others set meanwhile may have been told already.
    if (committed.ok() && others_move_) return Refresh(caller.context);
    if (committed.ok()) {
      MutexLock lock(mutex_);
      Put(directory, is_left ? std::optional(std::move(record)) : std::nullopt);
      NoteChange();
      return {};
    }
    if (committed.error().code != ErrorCode::kConflict) return committed.error();
    const auto there = names_.GetAttr(caller.context, directory);
    if (!there.ok()) return there.error();
  }
  return MakeError(ErrorCode::kBusy, "others change it again and again; try again");
}

}  // namespace cairnfs::fs
