// A word of the command line that must not be empty: from a script whose variable is not set it would otherwise be
// taken as left out, and the default one would be used in its place.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace cairnfs::tools {

inline CLI::Validator NotEmpty() {
  return CLI::Validator([](const std::string& word) { return word.empty() ? "must not be empty" : ""; }, "");
}

}  // namespace cairnfs::tools
