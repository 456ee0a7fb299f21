#include "fs/check_names.h"

#include <sys/stat.h>

#include "fs/scan.h"
#include "meta/records.h"

namespace cairnfs::fs {
namespace {

struct InodeNames {
  uint32_t count = 0;
  uint32_t type = 0;  // of the last one
};
using NamesOfInodes = std::unordered_map<InodeId, InodeNames>;

// Empty: the record says what the names say.
std::string WhatIsWrong(InodeId id, const meta::InodeRecord& record, const InodeNames& names) {
  uint32_t expected = id == kRootInode ? 1 : names.count;
  if (record.nlink != expected) {
    return "says " + std::to_string(record.nlink) + " links, but " + std::to_string(expected) + " names lead to it";
  }
  if (names.count > 0 && names.type != (record.mode & S_IFMT))
    return "is of another type than its directory entry says";
  return "";
}

// An inode that looked wrong, as it was before the names were counted again.
struct Suspect {
  uint64_t revision = 0;  // 0: not there
  bool was_there = false;
};
using Suspects = std::unordered_map<InodeId, Suspect>;

struct Look {
  uint64_t revision = 0;
  std::optional<meta::InodeRecord> record;
};

Result<Look> LookAt(const Context& context, kv::KvStore& kv, InodeId id) {
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, kv.Get(context, meta::InodeKey(id)));
  if (!entry) return Look{};
  CAIRNFS_ASSIGN_OR_RETURN(meta::InodeRecord record, meta::InodeRecord::Decode(entry->value));
  return Look{entry->revision, std::move(record)};
}

// Compares all names with all inodes. What was done meanwhile looks wrong too.
Status FindSuspects(const Context& context, kv::KvStore& kv, Findings& findings, CheckReport& report,
                    Suspects& suspects) {
  NamesOfInodes names;
  CAIRNFS_RETURN_IF_ERROR(ScanPrefix(context, kv, "E", [&](const kv::KvEntry& entry) {
    auto dentry = meta::DentryRecord::Decode(entry.value);
    if (!dentry.ok()) {
      findings.Add("a directory entry does not decode: " + dentry.error().message);
      return true;
    }
    InodeNames& of_inode = names[dentry->inode];
    of_inode.count++;
    of_inode.type = dentry->type;
    return true;
  }));
  CAIRNFS_RETURN_IF_ERROR(ScanPrefix(context, kv, "I", [&](const kv::KvEntry& entry) {
    auto id = meta::InodeOfKey(entry.key);
    auto record = meta::InodeRecord::Decode(entry.value);
    if (!id || !record.ok()) {
      findings.Add("an inode record does not decode", id);
      if (id) names.erase(*id);
      return true;
    }
    ((record->mode & S_IFMT) == S_IFDIR ? report.directories : report.files)++;
    auto found = names.find(*id);
    if (!WhatIsWrong(*id, *record, found == names.end() ? InodeNames{} : found->second).empty()) {
      suspects[*id].was_there = true;
    }
    if (found != names.end()) names.erase(found);
    return true;
  }));
  for (const auto& [id, of_inode] : names) suspects.emplace(id, Suspect{});
  return {};
}

// One more look at the suspects alone: drops those that are right, reports those that are wrong for sure. Every change
// of an inode's names changes its record, so a record that stayed the same while the names were counted had that count.
Status LookAgain(const Context& context, kv::KvStore& kv, bool last, Findings& findings, Suspects& suspects) {
  for (auto suspect = suspects.begin(); suspect != suspects.end();) {
    CAIRNFS_ASSIGN_OR_RETURN(Look look, LookAt(context, kv, suspect->first));
    suspect->second.revision = look.revision;
    bool removed = !look.record && suspect->second.was_there;
    suspect = removed ? suspects.erase(suspect) : std::next(suspect);
  }
  NamesOfInodes names;
  CAIRNFS_RETURN_IF_ERROR(ScanPrefix(context, kv, "E", [&](const kv::KvEntry& entry) {
    auto dentry = meta::DentryRecord::Decode(entry.value);
    if (!dentry.ok() || !suspects.contains(dentry->inode)) return true;
    InodeNames& of_inode = names[dentry->inode];
    of_inode.count++;
    of_inode.type = dentry->type;
    return true;
  }));
  for (auto suspect = suspects.begin(); suspect != suspects.end();) {
    auto& [id, before] = *suspect;
    const InodeNames of_inode = names[id];
    CAIRNFS_ASSIGN_OR_RETURN(Look look, LookAt(context, kv, id));
    std::string wrong;
    if (look.record) wrong = WhatIsWrong(id, *look.record, of_inode);
    if (!look.record && before.revision == 0 && of_inode.count > 0) {
      wrong = std::to_string(of_inode.count) + " names lead to it, but it is not there";
    }
    bool sure = last || look.revision == before.revision;
    if (!wrong.empty() && sure) findings.Add(wrong, id);
    before.was_there = before.was_there || look.record.has_value();
    suspect = wrong.empty() || sure ? suspects.erase(suspect) : std::next(suspect);
  }
  return {};
}

}  // namespace

Status CheckNames(const Context& context, kv::KvStore& kv, Findings& findings, CheckReport& report) {
  Suspects suspects;
  CAIRNFS_RETURN_IF_ERROR(FindSuspects(context, kv, findings, report, suspects));
  for (int look = 1; !suspects.empty() && look <= Findings::kLooksMax; look++) {
    CAIRNFS_RETURN_IF_ERROR(LookAgain(context, kv, look == Findings::kLooksMax, findings, suspects));
  }
  return {};
}

}  // namespace cairnfs::fs
