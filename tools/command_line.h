// What the command lines of cairnfs and cairnfsd have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace cairnfs::tools {

// A word of the command line that must not be empty. A script whose variable is not set gives an empty word, which
// would be taken as left out: then the default would be used in its place.
inline CLI::Validator NotEmpty() {
  return CLI::Validator([](const std::string& word) { return word.empty() ? "must not be empty" : ""; }, "");
}

// The answer to a wrong command line: like every other error, with the program's name in front.
inline std::string ParseFailure(const CLI::App* app, const CLI::Error& error) {
  const std::string& name = app->get_name();
  return name + ": " + error.what() + "\nTry " + name + " --help.\n";
}

}  // namespace cairnfs::tools
