#include "exec_line.h"

#include <gtest/gtest.h>

namespace cairnfs::tools {
namespace {

std::string CommandOf(const std::string& line) {
  const auto command = ExecCommand(line);
  return command.ok() ? *command : command.error().message;
}

TEST(ExecLineTest, ThePathIsAParameter) {
  EXPECT_EQ(CommandOf("echo {} >> {}.log"), R"(echo "$1" >> "$1".log)");
  EXPECT_EQ(CommandOf(R"(echo "got $1" 'it' {})"), R"(echo "got $1" 'it' "$1")");
  EXPECT_EQ(CommandOf(R"(echo "'" {} '"' {})"), R"(echo "'" "$1" '"' "$1")");
  EXPECT_EQ(CommandOf("true"), "true");
  EXPECT_EQ(CommandOf("{}"), "\"$1\"");
}

TEST(ExecLineTest, ABackslashTakesTheMeaningOfWhatFollows) {
  EXPECT_EQ(CommandOf(R"(echo \{} \" {} \' {} \\{} \)"), R"(echo \{} \" "$1" \' "$1" \\"$1" \)");
  EXPECT_EQ(CommandOf(R"(echo "\"" {} '\' {})"), R"(echo "\"" "$1" '\' "$1")");
}

TEST(ExecLineTest, InsideQuotesItIsRefused) {
  for (const char* line : {"echo '{}'", "echo \"{}\"", "echo \"at {}\"", "echo {} '{}'", "echo \"$(basename {})\"",
                           "echo '\\' '{}'", "echo \"\\\"{}\"", "echo 'open {}"}) {
    const auto command = ExecCommand(line);
    ASSERT_FALSE(command.ok()) << line;
    EXPECT_EQ(command.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(command.error().message.find("inside quotes"), std::string::npos);
  }
}

}  // namespace
}  // namespace cairnfs::tools
