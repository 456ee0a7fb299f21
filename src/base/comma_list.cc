#include "base/comma_list.h"

namespace cairnfs {

std::vector<std::string_view> SplitAtCommas(std::string_view list) {
  std::vector<std::string_view> words;
  if (list.empty()) return words;
  for (;;) {
    const size_t comma = list.find(',');
    words.push_back(list.substr(0, comma));
    if (comma == std::string_view::npos) return words;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace cairnfs
