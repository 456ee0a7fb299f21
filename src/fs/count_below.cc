#include "fs/count_below.h"

#include <sys/stat.h>

#include <string>
#include <vector>

#include "fs/scan.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kNamesPerRead = 1024;
constexpr size_t kRecordsPerRead = 64;

}  // namespace

Result<meta::CommitPart::Totals> CountBelow(const Context& context, meta::Namespace& names, kv::KvStore& kv,
                                            InodeId directory) {
  meta::CommitPart::Totals totals;
  std::vector<InodeId> directories{directory};
  while (!directories.empty()) {
    const InodeId next = directories.back();
    directories.pop_back();
    std::string after;
    for (bool more = true; more;) {
      auto entries = names.ReadDirectory(context, next, after, kNamesPerRead);
      if (!entries.ok() && entries.error().code == ErrorCode::kNotFound) break;  // removed meanwhile
      if (!entries.ok()) return entries.error();
      more = !entries->empty();
      if (more) after = entries->back().name;
      std::vector<std::string> keys;
      for (const meta::DirectoryEntry& entry : *entries) {
        if (entry.type == S_IFDIR) directories.push_back(entry.inode);
        if (entry.type == S_IFREG) keys.push_back(meta::FileKey(entry.inode));
      }
      totals.files += keys.size();
      const auto add = [&](size_t, const kv::KvEntry* entry) -> Status {
        if (entry == nullptr) return {};  // nothing was ever written to it
        CAIRNFS_ASSIGN_OR_RETURN(const meta::FileRecord record, meta::FileRecord::Decode(entry->value));
        totals.bytes += record.size;
        return {};
      };
      CAIRNFS_RETURN_IF_ERROR(kv::ReadKeys(context, kv, keys, kRecordsPerRead, add));
      if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "the count was ended");
    }
  }
  return totals;
}

}  // namespace cairnfs::fs
