#include "kv/store.h"

#include <algorithm>

namespace cairnfs::kv {

Transaction& Transaction::IfRevision(std::string key, uint64_t revision) {
  compares.push_back(Compare{Compare::Kind::kRevisionIs, std::move(key), {}, revision});
  return *this;
}

Transaction& Transaction::IfExists(std::string key) {
  compares.push_back(Compare{Compare::Kind::kExists, std::move(key), {}, 0});
  return *this;
}

Transaction& Transaction::IfRangeEmpty(std::string begin, std::string end) {
  compares.push_back(Compare{Compare::Kind::kRangeEmpty, std::move(begin), std::move(end), 0});
  return *this;
}

Transaction& Transaction::IfRangeUnchanged(std::string begin, std::string end, uint64_t revision) {
  compares.push_back(Compare{Compare::Kind::kRangeUnchanged, std::move(begin), std::move(end), revision});
  return *this;
}

Transaction& Transaction::Put(std::string key, std::string value) {
  writes.push_back(KvWrite{std::move(key), std::move(value)});
  return *this;
}

Transaction& Transaction::Delete(std::string key) {
  writes.push_back(KvWrite{std::move(key), std::nullopt});
  return *this;
}

Status KvStore::VisitRange(const Context& context, std::string_view begin, std::string_view end,
                           const EntryVisitor& visit) {
  constexpr size_t kEntriesPerRead = 4096;
  std::string from(begin);
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(const KvRange range, Range(context, from, end, kEntriesPerRead));
    for (const KvEntry& entry : range.entries) {
      if (!visit({entry.key, entry.value, entry.revision})) return {};
    }
    if (!range.more) return {};
    from.assign(range.entries.back().key).push_back('\0');  // the least key after it
  }
}

Result<uint64_t> KvStore::VisitDurable(const Context& context, std::string_view begin, std::string_view end,
                                       const EntryVisitor& visit) {
  CAIRNFS_RETURN_IF_ERROR(Sync(context));
  CAIRNFS_ASSIGN_OR_RETURN(const KvRange range, Range(context, begin, end, 0));
  for (const KvEntry& entry : range.entries) {
    if (!visit({entry.key, entry.value, entry.revision})) break;
  }
  return range.revision;
}

Status ReadKeys(const Context& context, KvStore& store, const std::vector<std::string>& keys, size_t keys_per_read,
                const std::function<Status(size_t index, const KvEntry* entry)>& visit) {
  for (size_t begin = 0; begin < keys.size(); begin += keys_per_read) {
    const size_t end = std::min(keys.size(), begin + keys_per_read);
    std::vector<KvSpan> spans;
    for (size_t i = begin; i < end; i++) spans.push_back({keys[i], {}, 0});
    CAIRNFS_ASSIGN_OR_RETURN(const KvSnapshot snapshot, store.Read(context, spans));
    for (size_t i = begin; i < end; i++) {
      const std::vector<KvEntry>& entries = snapshot.ranges[i - begin].entries;
      CAIRNFS_RETURN_IF_ERROR(visit(i, entries.empty() ? nullptr : &entries.front()));
    }
  }
  return {};
}

Status CheckLimits(const Transaction& transaction, const KvLimits& limits) {
  size_t operations = std::max(transaction.compares.size(), transaction.writes.size());
  size_t bytes = 0;
  for (const Compare& compare : transaction.compares) bytes += compare.key.size() + compare.range_end.size();
  for (const KvWrite& write : transaction.writes) bytes += write.key.size() + (write.value ? write.value->size() : 0);
  if (operations <= limits.operations_per_transaction_max && bytes <= limits.transaction_bytes_max) return {};
  return MakeError(ErrorCode::kTooLarge, "a transaction of " + std::to_string(operations) + " operations and " +
                                             std::to_string(bytes) + " bytes is past the store's limits of " +
                                             std::to_string(limits.operations_per_transaction_max) + " and " +
                                             std::to_string(limits.transaction_bytes_max));
}

Error CompareFailed() {
  return MakeError(ErrorCode::kConflict, "a key or range that the transaction relied on has changed");
}

bool MayHaveRun(ErrorCode code) {
  switch (code) {
    // The store looked at the transaction, and refused it.
    case ErrorCode::kConflict:
    case ErrorCode::kCorrupt:
    case ErrorCode::kNoSpace:
    case ErrorCode::kTooLarge:
    case ErrorCode::kNotFound:
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kPermission:
    case ErrorCode::kNotSupported: return false;
    default: return true;
  }
}

std::string PrefixEnd(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty()) {
    auto last = static_cast<unsigned char>(end.back());
    if (last != 0xff) {
      end.back() = static_cast<char>(last + 1);
      return end;
    }
    end.pop_back();
  }
  return end;
}

}  // namespace cairnfs::kv
