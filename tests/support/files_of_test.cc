#include "files_of_test.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <sstream>
#include <string>

namespace cairnfs {
namespace {

std::set<std::string> Split(const std::string& names) {
  std::set<std::string> all;
  std::istringstream text(names);
  for (std::string name; std::getline(text, name, ',');) all.insert(name);
  return all;
}

// The value after the argument of this name; empty: it is not given.
std::string ValueOf(const std::string& name, int argument_count, char** arguments) {
  for (int i = 1; i + 1 < argument_count; ++i) {
    if (arguments[i] == name) return arguments[i + 1];
  }
  return "";
}

}  // namespace

int RunTests(int argument_count, char** arguments) {
  testing::InitGoogleTest(&argument_count, arguments);
  const std::set<std::string> files = Split(ValueOf("--files", argument_count, arguments));
  if (files.empty()) return RUN_ALL_TESTS();
  const std::set<std::string> all = Split(ValueOf("--of", argument_count, arguments));
  std::string chosen;
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *program.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) {
      const testing::TestInfo& test = *suite.GetTestInfo(k);
      const std::string path = test.file(), file = path.substr(path.rfind('/') + 1);
      if (!all.contains(file)) {
        std::fprintf(stderr, "%s.%s of %s is run by nobody: name the file in meson.build\n", test.test_suite_name(),
                     test.name(), path.c_str());
        return 1;
      }
      if (files.contains(file)) chosen += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  if (chosen.empty()) {
    std::fprintf(stderr, "no test lies in these files\n");
    return 1;
  }
  // A filter of the command line takes more away: "-A:B", or the patterns of which one has to match.
  const std::string asked = GTEST_FLAG_GET(filter);
  if (asked.starts_with("-")) {
    GTEST_FLAG_SET(filter, chosen + asked);
  } else if (asked == "*") {
    GTEST_FLAG_SET(filter, chosen);
  }
  return RUN_ALL_TESTS();
}

}  // namespace cairnfs
