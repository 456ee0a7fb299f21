// Judges recorded histories (history.h), one round per file.
//
//   check_history [--configurations N] FILE...
//
// Prints one line per file, and for a history that is not linearizable where it ends. Exit status: 0 all are; 1 one is
// not; 3 none is wrong but the search had to be given up for some; 2 a file cannot be read.
#include <fmt/format.h>
#include <getopt.h>

#include <fstream>
#include <iostream>
#include <iterator>

#include "history.h"

namespace cairnfs::testing {
namespace {

struct Tally {
  int refused = 0, given_up = 0;
};

void Judge(const Specification& specification, const std::vector<CallInterval>& calls, const std::vector<size_t>& part,
           const SearchLimits& limits, const std::string& name, Tally& tally) {
  SearchReport report = CheckLinearizability(specification, calls, part, limits);
  const char* verdict = report.verdict == Linearizability::kYes  ? "linearizable"
                        : report.verdict == Linearizability::kNo ? "NOT LINEARIZABLE"
                                                                 : "given up";
  fmt::print("{}: {} calls, {}, {} configurations\n", name, part.empty() ? calls.size() : part.size(), verdict,
             report.configurations);
  tally.refused += report.verdict == Linearizability::kNo;
  tally.given_up += report.verdict == Linearizability::kUnknown;
  if (report.verdict == Linearizability::kNo) fmt::print("{}", Explain(specification, calls, report));
}

void JudgeFile(const std::string& path, const SearchLimits& limits, Tally& tally) {
  std::ifstream file(path);
  if (!file) throw std::invalid_argument("cannot be opened");
  History history = ParseHistory(std::string(std::istreambuf_iterator<char>(file), {}));
  if (!history.tree.empty()) {
    TreeSpecification tree(history.tree);
    Judge(tree, tree.calls(), {}, limits, path + " (names)", tally);
  }
  LockSpecification locks(history.locks);
  for (const std::vector<size_t>& part : locks.PartsOf()) {
    Judge(locks, locks.calls(), part, limits, path + " (locks)", tally);
  }
}

int Main(int argc, char** argv) {
  static const option kLong[] = {{"configurations", 1, nullptr, 'c'}, {nullptr, 0, nullptr, 0}};
  SearchLimits limits;
  for (int c; (c = getopt_long(argc, argv, "", kLong, nullptr)) != -1;) {
    if (c != 'c') return 2;
    limits.configurations_max = std::strtoull(optarg, nullptr, 10);
  }
  Tally tally;
  for (int i = optind; i < argc; ++i) {
    try {
      JudgeFile(argv[i], limits, tally);
    } catch (const std::exception& error) {
      fmt::print(stderr, "check_history: {}: {}\n", argv[i], error.what());
      return 2;
    }
  }
  if (tally.refused > 0) return 1;
  return tally.given_up > 0 ? 3 : 0;
}

}  // namespace
}  // namespace cairnfs::testing

int main(int argc, char** argv) { return cairnfs::testing::Main(argc, argv); }
