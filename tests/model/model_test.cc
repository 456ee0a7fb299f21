// The model test: random operations on a mount and on a plain ext4 directory side by side. Results, errors and contents
// are compared after each operation, whole trees now and then, and everything again after each remount.
//
//   model_test --plain DIR --mount DIR [--seed N] [--operations N] [--processes N] [--phases N] [--remount COMMAND]
//              [--verbose] [--control]
//
// A run is replayed by its seed and its other numbers. Each worker's choices depend on them alone.
#include <fcntl.h>
#include <fmt/format.h>
#include <getopt.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <new>
#include <random>

#include "../support/random.h"
#include "worker.h"

namespace cairnfs::testing {
namespace {

struct Options {
  std::string plain, mount, remount;
  uint64_t seed = 0, operations = 100000;
  unsigned processes = 4, phases = 4;
  bool verbose = false;
  bool control = false;  // both sides are plain: shows that the test itself is right
};

Options ParseOptions(int argc, char** argv) {
  static const option kLong[] = {{"plain", 1, nullptr, 'p'},     {"mount", 1, nullptr, 'm'},
                                 {"seed", 1, nullptr, 's'},      {"operations", 1, nullptr, 'o'},
                                 {"processes", 1, nullptr, 'n'}, {"phases", 1, nullptr, 'h'},
                                 {"remount", 1, nullptr, 'r'},   {"control", 0, nullptr, 'c'},
                                 {"verbose", 0, nullptr, 'v'},   {nullptr, 0, nullptr, 0}};
  Options options;
  std::random_device device;
  options.seed = (static_cast<uint64_t>(device()) << 32 | device()) % 1000000000;
  for (int c; (c = getopt_long(argc, argv, "", kLong, nullptr)) != -1;) {
    switch (c) {
      case 'p': options.plain = optarg; break;
      case 'm': options.mount = optarg; break;
      case 's': options.seed = std::stoull(optarg); break;
      case 'o': options.operations = std::stoull(optarg); break;
      case 'n': options.processes = static_cast<unsigned>(std::stoul(optarg)); break;
      case 'h': options.phases = static_cast<unsigned>(std::stoul(optarg)); break;
      case 'r': options.remount = optarg; break;
      case 'v': options.verbose = true; break;
      case 'c': options.control = true; break;
      default: exit(2);
    }
  }
  if (options.plain.empty() || options.mount.empty()) {
    fmt::print(stderr, "model_test: --plain and --mount are needed\n");
    exit(2);
  }
  return options;
}

void MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0777) != 0 || chmod(path.c_str(), 0777) != 0) {
    perror(path.c_str());
    exit(2);
  }
}

void PrepareSide(const std::string& root, unsigned processes) {
  for (unsigned i = 0; i < processes; ++i) MakeDirectory(fmt::format("{}/w{}", root, i));
  for (const char* name : {"/shared", "/shared/names", "/shared/race"}) MakeDirectory(root + name);
  for (const char* name : {"map", "log", "blocks", "counter-0", "counter-1", "counter-2"}) {
    int fd = open((root + "/shared/" + name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    off_t size = name == std::string("map") ? 4096 * static_cast<off_t>(processes) : 0;
    if (fd < 0 || ftruncate(fd, size) != 0) exit(2);
    close(fd);
  }
}

bool CompareSides(const Options& options, const std::string& when) {
  int plain = open(options.plain.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int mount = open(options.mount.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  Findings findings;
  for (unsigned i = 0; i < options.processes; ++i) {
    Findings more = CompareTrees(plain, mount, fmt::format("w{}", i));
    findings.insert(findings.end(), more.begin(), more.end());
  }
  // The order of records and who won a race are nobody's contract; their sums are checked by CheckShared.
  for (const char* name : {"shared/names", "shared/blocks", "shared/map"}) {
    Findings more = CompareTrees(plain, mount, name);
    findings.insert(findings.end(), more.begin(), more.end());
  }
  close(plain);
  close(mount);
  if (!findings.empty()) fmt::print("\nMISMATCH of whole trees {}:\n", when);
  for (const std::string& finding : findings) fmt::print("  {}\n", finding);
  return findings.empty();
}

bool CheckTogether(const std::string& root, const SharedTotals& totals, unsigned phase, const char* side) {
  int shared = open((root + "/shared").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  Findings findings = CheckShared(shared, totals, phase);
  close(shared);
  for (const std::string& finding : findings) fmt::print("\nMISMATCH, {} side, together: {}\n", side, finding);
  return findings.empty();
}

bool RunPhase(const Options& options, unsigned phase, Totals& totals) {
  std::vector<pid_t> children;
  fflush(stdout);
  for (unsigned i = 0; i < options.processes; ++i) {
    pid_t child = fork();
    if (child == 0) {
      WorkerOptions worker;
      worker.plain = options.plain;
      worker.mount = options.mount;
      worker.seed = MixBits(options.seed * 1000003 + phase * 1009 + i);
      worker.operations = options.operations / options.phases / options.processes;
      worker.worker = i;
      worker.worker_count = options.processes;
      worker.phase = phase;
      worker.verbose = options.verbose;
      worker.control = options.control;
      _exit(RunWorker(worker, totals) ? 0 : 1);
    }
    children.push_back(child);
  }
  bool good = true;
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) good = false;
    if (WIFSIGNALED(status)) fmt::print("a worker was ended by signal {}\n", WTERMSIG(status));
  }
  return good;
}

bool PrintTotals(const Totals& totals, uint64_t wanted) {
  uint64_t tried = 0, succeeded = 0;
  fmt::print("{:40} {:>8} {:>10}\n", "operation", "tried", "succeeded");
  for (size_t i = 0; i < kKindCount; ++i) {
    fmt::print("{:40} {:>8} {:>10}\n", kKinds[i].name, totals.tried[i].load(), totals.succeeded[i].load());
    tried += totals.tried[i];
    succeeded += totals.succeeded[i];
  }
  fmt::print("{:40} {:>8} {:>10}\n", "all", tried, succeeded);
  if (succeeded * 2 < tried) fmt::print("FAILED: fewer than half of the operations succeeded\n");
  if (tried + 1000 < wanted) fmt::print("FAILED: {} operations were wanted\n", wanted);
  return succeeded * 2 >= tried && tried + 1000 >= wanted;
}

int Main(int argc, char** argv) {
  Options options = ParseOptions(argc, argv);
  fmt::print("model_test --seed {} --operations {} --processes {} --phases {}\n", options.seed, options.operations,
             options.processes, options.phases);
  umask(0);
  PrepareSide(options.plain, options.processes);
  PrepareSide(options.mount, options.processes);
  void* memory = mmap(nullptr, sizeof(Totals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* totals = new (memory) Totals();
  bool good = true;
  for (unsigned phase = 0; phase < options.phases && good; ++phase) {
    auto begin = std::chrono::steady_clock::now();
    good = RunPhase(options, phase, *totals);
    good = CompareSides(options, fmt::format("at the end of phase {}", phase)) && good;
    good = CheckTogether(options.plain, totals->plain_shared, phase, "plain") && good;
    good = CheckTogether(options.mount, totals->mount_shared, phase, "mounted") && good;
    if (!options.remount.empty()) {
      fflush(stdout);
      if (system(options.remount.c_str()) != 0) {
        fmt::print("FAILED: the remount command failed\n");
        return 1;
      }
      good = CompareSides(options, fmt::format("after the remount of phase {}", phase)) && good;
      good = CheckTogether(options.mount, totals->mount_shared, phase, "remounted") && good;
    }
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    fmt::print("phase {}: {:.1f} s{}\n", phase, seconds.count(), good ? "" : ", FAILED");
  }
  good = PrintTotals(*totals, options.operations) && good;
  fmt::print("{}\n", good ? "PASSED" : "FAILED");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace cairnfs::testing

int main(int argc, char** argv) { return cairnfs::testing::Main(argc, argv); }
