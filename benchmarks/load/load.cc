// bench_load: the load generator of tools/bench. Reads commands from stdin until it ends (commands.h).
#include <fmt/format.h>
#include <sys/prctl.h>

#include <csignal>
#include <iostream>

#include "commands.h"

namespace cairnfs::bench {
namespace {

std::vector<std::string> Split(const std::string& line) {
  std::vector<std::string> words;
  size_t begin = 0;
  while (begin <= line.size()) {
    size_t end = std::min(line.find('\t', begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    if (c == '"' || c == '\\') escaped.push_back('\\');
    escaped.push_back(static_cast<unsigned char>(c) < ' ' ? ' ' : c);
  }
  return escaped;
}

std::string Execute(const CommandTable& table, LoadState& state, const std::string& line) {
  std::vector<std::string> words = Split(line);
  try {
    auto command = table.find(words[0]);
    if (command == table.end()) throw LoadError("no such command: " + words[0]);
    Arguments arguments(std::vector<std::string>(words.begin() + 1, words.end()));
    std::string text;
    for (const auto& [name, value] : command->second(state, arguments)) {
      text += fmt::format("{}\"{}\": {:.9f}", text.empty() ? "" : ", ", name, value);
    }
    return "{" + text + "}";
  } catch (const std::exception& error) {
    return fmt::format("{{\"error\": \"{}\"}}", Escaped(error.what()));
  }
}

}  // namespace
}  // namespace cairnfs::bench

int main() {
  using namespace cairnfs::bench;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // never outlives the driver
  CommandTable table;
  AddMemoryCommands(table);
  AddSavingCommands(table);
  AddReadingCommands(table);
  AddNameCommands(table);
  LoadState state;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Execute(table, state, line) << std::endl;
  }
  return 0;
}
