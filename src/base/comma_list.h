// Lists of words with commas between them: options of mounts, addresses, controllers.
#pragma once

#include <string_view>
#include <vector>

namespace cairnfs {

// A word before each comma and one after the last, any of which may be empty; of an empty list none. They point into
// `list`.
std::vector<std::string_view> SplitAtCommas(std::string_view list);

}  // namespace cairnfs
