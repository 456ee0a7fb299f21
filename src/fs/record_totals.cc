#include "fs/record_totals.h"

#include <algorithm>

#include "meta/records.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kPageEntries = 2048;

uint64_t AllocatedBytesIn(const std::string& value) {
  auto record = meta::FileRecord::Decode(value);
  return record.ok() ? record->allocated_bytes : 0;
}

}  // namespace

RecordTotals::RecordTotals(kv::LocalKvStore& kv) : kv_(kv) {
  kv_.Watch('D',
            [this](std::string_view key, const std::optional<std::string>& before,
                   const std::optional<std::string>& after, uint64_t revision) { Note(key, before, after, revision); });
}

RecordTotals::~RecordTotals() { kv_.Watch('D', {}); }

void RecordTotals::Note(std::string_view key, const std::optional<std::string>& before,
                        const std::optional<std::string>& after, uint64_t revision) {
  const uint64_t added = (after ? AllocatedBytesIn(*after) : 0) - (before ? AllocatedBytesIn(*before) : 0);
  auto inode = meta::InodeOfKey(key);
  if (added == 0 || !inode) return;
  MutexLock lock(mutex_);
  if (is_counted_) {
    allocated_bytes_ += added;
  } else {
    changes_.push_back({*inode, added, revision});
  }
}

void RecordTotals::Count(const Context& context) {
  std::vector<Page> pages;
  uint64_t bytes = 0;
  const std::string end = kv::PrefixEnd("D");
  std::string begin = "D";
  for (bool more = true; more && !context.Expired();) {
    auto range = kv_.Range(context, begin, end, kPageEntries);
    if (!range.ok()) break;
    for (const kv::KvEntry& entry : range->entries) bytes += AllocatedBytesIn(entry.value);
    more = range->more && !range->entries.empty();
    pages.push_back({more ? range->entries.back().key : end, range->revision});
    if (more) begin = pages.back().last_key + '\0';
  }
  MutexLock lock(mutex_);
  for (const Change& change : changes_) {
    auto page = std::lower_bound(pages.begin(), pages.end(), meta::FileKey(change.inode),
                                 [](const Page& left, const std::string& key) { return left.last_key < key; });
    if (page == pages.end() || change.revision > page->revision) bytes += change.added;
  }
  changes_ = {};
  allocated_bytes_ = bytes;
  is_counted_ = true;
  counted_.NotifyAll();
}

uint64_t RecordTotals::AllocatedBytes() {
  MutexLock lock(mutex_);
  while (!is_counted_) counted_.Wait(mutex_);
  return allocated_bytes_;
}

uint64_t RecordTotals::AllocatedBytesOf(InodeId inode) {
  auto entry = kv_.Get({}, meta::FileKey(inode));
  return entry.ok() && entry->has_value() ? AllocatedBytesIn((*entry)->value) : 0;
}

}  // namespace cairnfs::fs
