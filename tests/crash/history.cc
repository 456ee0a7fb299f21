#include "history.h"

#include <fmt/format.h>
#include <time.h>

namespace cairnfs::testing {

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

std::string Record::Describe() const {
  static const char* const kNames[] = {"mkdir",  "create", "rename file", "rename directory", "link",  "symlink",
                                       "unlink", "rmdir",  "chmod",       "setxattr",         "write", "truncate",
                                       "punch",  "close",  "fsync",       "fsync directory"};
  return fmt::format("{} '{}' '{}' file {} [{} +{}]{} seq {}-{}", kNames[static_cast<int>(step)], a, b, file, offset,
                     length, is_sync_point ? " (sync point)" : "", begin, end);
}

void Sequence::Begin(Record& record) {
  record.begin_position = position_();
  record.begin = next_++;
}

void Sequence::End(Record& record) {
  record.end = next_++;
  record.end_time_ns = NowNs();
  record.end_position = position_();
  last_end_time_ns_ = record.end_time_ns;
}

}  // namespace cairnfs::testing
