// What the command lines of cairnfs and cairnfsd have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace cairnfs::tools {

// A word of the command line that must not be empty: from a script whose variable is not set it would otherwise be
// taken as left out, and the default one would be used in its place.
inline CLI::Validator NotEmpty() {
  return CLI::Validator([](const std::string& word) { return word.empty() ? "must not be empty" : ""; }, "");
}

// What a wrong command line is answered with, as every other error is: with the program's name in front.
inline std::string ParseFailure(const CLI::App* app, const CLI::Error& error) {
  const std::string name = app->get_name();
  return name + ": " + error.what() + "\nTry " + name + " --help.\n";
}

}  // namespace cairnfs::tools
