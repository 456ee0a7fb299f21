// What the command lines of cairnfs and cairnfsd have in common.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>

namespace cairnfs::tools {

// A word of the command line that must not be empty. A script whose variable is not set gives an empty word, which
// would be taken as left out: then the default would be used in its place.
inline CLI::Validator NotEmpty() {
  return CLI::Validator([](const std::string& word) { return word.empty() ? "must not be empty" : ""; }, "");
}

// A number without a sign, from `least` to 2^63 - 1. What is negative or too large would be taken for another one.
inline CLI::Validator WholeNumber(uint64_t least) {
  const auto why_not = [least](const std::string& word) -> std::string {
    uint64_t number = 0;
    const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), number);
    const bool is_number = code == std::errc() && end == word.data() + word.size();
    if (is_number && number >= least && number <= uint64_t{INT64_MAX}) return "";
    return fmt::format("is to be a whole number from {} to 2^63 - 1, not '{}'", least, word);
  };
  return CLI::Validator(why_not, "");
}

// The answer to a wrong command line: like every other error, with the program's name in front.
inline std::string ParseFailure(const CLI::App* app, const CLI::Error& error) {
  const std::string& name = app->get_name();
  return name + ": " + error.what() + "\nTry " + name + " --help.\n";
}

}  // namespace cairnfs::tools
