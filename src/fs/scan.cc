#include "fs/scan.h"

namespace cairnfs::fs {

Status ScanPrefix(const Context& context, kv::KvStore& kv, const std::string& prefix,
                  const std::function<bool(const kv::KvEntry&)>& visit) {
  constexpr size_t kPageEntries = 2048;
  const std::string end = kv::PrefixEnd(prefix);
  std::string begin = prefix;
  for (bool more = true; more;) {
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "stopped");
    CAIRNFS_ASSIGN_OR_RETURN(kv::KvRange range, kv.Range(context, begin, end, kPageEntries));
    for (const kv::KvEntry& entry : range.entries) {
      if (!visit(entry)) return {};
    }
    more = range.more && !range.entries.empty();
    if (more) begin = range.entries.back().key + '\0';
  }
  return {};
}

}  // namespace cairnfs::fs
