#include "operation.h"

#include <fmt/format.h>

#include <cstring>

namespace cairnfs::testing {

const std::array<KindInfo, kKindCount> kKinds = {{
#define CAIRNFS_MODEL_INFO(name, text, weight) KindInfo{text, weight},
    CAIRNFS_MODEL_KINDS(CAIRNFS_MODEL_INFO)
#undef CAIRNFS_MODEL_INFO
}};

std::string Operation::Describe() const {
  auto shorten = [](const std::string& path) {
    return path.size() <= 60 ? path : path.substr(0, 60) + fmt::format("...({} bytes)", path.size());
  };
  return fmt::format(
      "{}: a='{}' b='{}' slot={} slot2={} offset={} offset2={} length={} flags={:#x} mode={:#o} uid={} content={} "
      "variant={}",
      InfoOf(kind).name, shorten(a), shorten(b), slot, slot2, offset, offset2, length, flags, mode, uid, content,
      variant);
}

std::string Outcome::Describe() const {
  std::string text = fmt::format("result {}", result);
  if (result < 0) text += fmt::format(" {} ({})", strerrorname_np(error), strerror(error));
  if (data.empty()) return text;
  bool printable = data.size() < 600;
  for (char c : data) printable = printable && (c == '\n' || (c >= ' ' && c <= '~'));
  return text + (printable ? " [" + data + "]" : fmt::format(" [{} bytes]", data.size()));
}

}  // namespace cairnfs::testing
