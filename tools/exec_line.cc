#include "exec_line.h"

#include <string_view>

namespace cairnfs::tools {

Result<std::string> ExecCommand(const std::string& line) {
  constexpr std::string_view kPlaceOfPath = "{}", kPath = "\"$1\"";
  std::string command;
  char quote = '\0';  // which one is open
  for (size_t at = 0; at < line.size(); ++at) {
    const char letter = line[at];
    if (std::string_view(line).substr(at).starts_with(kPlaceOfPath)) {
      if (quote != '\0') {
        return InvalidArgument(
            "--exec: a {} stands inside quotes; it is a whole word, and needs none. Inside \"...\" write $1");
      }
      command += kPath;
      at += kPlaceOfPath.size() - 1;
      continue;
    }
    command += letter;
    const bool is_escape = letter == '\\' && quote != '\'' && at + 1 < line.size();
    if (is_escape) command += line[++at];
    if (is_escape || (letter != '\'' && letter != '"')) continue;
    if (quote == '\0') {
      quote = letter;
    } else if (quote == letter) {
      quote = '\0';
    }
  }
  return command;
}

}  // namespace cairnfs::tools
