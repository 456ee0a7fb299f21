// The kill test: writers work on a mount while its daemon is killed, at random moments and at every named failpoint; it
// is started again, and an oracle that lives outside the mount judges what is there (oracle.h).
//
//   kill_test --scratch DIR [--seed N] [--rounds N] [--writers N] [--only FAILPOINT] [--options MOUNT_OPTIONS]
//
// Fault model: SIGKILL of the daemon. What it had handed to the kernel stays; what it held in memory is gone.
#include <fcntl.h>
#include <fmt/format.h>
#include <getopt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string_view>
#include <utility>

#include "command.h"
#include "daemon_process.h"
#include "load.h"

namespace cairnfs::testing {
namespace {

constexpr unsigned kRoundsPerFailpointMax = 10;
// What only a start passes, and only after a kill at the second.
const std::map<std::string, std::string> kPassedAfterKillAt = {{"store.journal_replayed", "store.journal_written"}};
// The fixed rest. Segments of 4 MiB: one open, those prepared for it, 8 MiB of freed ones that are kept. RocksDB: two
// write-ahead logs of a write buffer (32 MiB) each, what it preallocates for the next, and its own log.
constexpr uint64_t kSegmentsRest = 24 << 20;
constexpr uint64_t kMetadataRest = 96 << 20;

struct Options {
  std::string scratch, only;
  std::string mount_options =
      "pool_size=64MiB,segment_size=4MiB,free_segments_max=8MiB,reserve=1MiB,collect_delay=100ms,"
      "collect_after=1MiB";
  uint64_t seed = 0;
  unsigned rounds = 40, writers = 3;
};

Options ParseOptions(int argc, char** argv) {
  static const option kLong[] = {{"scratch", 1, nullptr, 'd'}, {"seed", 1, nullptr, 's'}, {"rounds", 1, nullptr, 'r'},
                                 {"writers", 1, nullptr, 'w'}, {"only", 1, nullptr, 'o'}, {"options", 1, nullptr, 'm'},
                                 {nullptr, 0, nullptr, 0}};
  Options options;
  options.seed = std::random_device()() % 1000000000;
  for (int c; (c = getopt_long(argc, argv, "", kLong, nullptr)) != -1;) {
    switch (c) {
      case 'd': options.scratch = optarg; break;
      case 's': options.seed = std::stoull(optarg); break;
      case 'r': options.rounds = static_cast<unsigned>(std::stoul(optarg)); break;
      case 'w': options.writers = static_cast<unsigned>(std::stoul(optarg)); break;
      case 'o': options.only = optarg; break;
      case 'm': options.mount_options = optarg; break;
      default: exit(2);
    }
  }
  if (options.scratch.empty()) {
    fmt::print(stderr, "kill_test: --scratch is needed\n");
    exit(2);
  }
  return options;
}

// Those are passed in cluster_*.py, metadata.py, deferred.py, trash.py, atomic_files.py and seal.py of tests/mounted,
// and in those of kv's unit tests.
bool IsPassedElsewhere(const std::string& name) {
  constexpr std::string_view kBegins[] = {"fs.shared_", "grow.",       "node.",      "standby.",
                                          "fs.ticket_", "meta.trash_", "fs.atomic_", "fs.seal_"};
  return std::any_of(std::begin(kBegins), std::end(kBegins),
                     [&](std::string_view begin) { return name.starts_with(begin); });
}

class KillTest {
 public:
  explicit KillTest(const Options& options)
      : options_(options),
        random_(options.seed),
        daemon_(DaemonOptions{BinDirOrExit(), options.scratch + "/mount", options.scratch + "/data",
                              options.mount_options, options.scratch + "/daemon.log"}) {
    std::filesystem::create_directories(options_.scratch + "/mount");
    std::istringstream list(MustRun({daemon_.options().bin_dir + "/cairnfsd", "--list-failpoints"}));
    for (std::string name, kind; list >> name >> kind;) {
      if (kind == "kill" && !IsPassedElsewhere(name)) failpoints_.push_back(name);
    }
  }

  bool Run() {
    bool good = true;
    if (options_.only.empty()) {
      for (const std::string& name : failpoints_) {
        if (name.starts_with("daemon.")) good = good && FreshRound(name);
      }
    }
    good = good && StartNormally();
    while (good && (round_ < options_.rounds || !NextFailpoint().empty())) good = Round();
    good = good && FinalCollection();
    PrintFailpoints();
    for (const std::string& name : failpoints_) {
      bool wanted = options_.only.empty() || name == options_.only;
      if (good && wanted && hits_[name] == 0) {
        fmt::print("FAILED: failpoint {} was never reached\n", name);
        good = false;
      }
    }
    return good;
  }

 private:
  bool Fail(const std::string& text) {
    fmt::print("\nFAILED in round {}: {}\nThe daemon's log ends with:\n{}\n", round_, text, daemon_.LogTail());
    return false;
  }

  bool StartNormally() {
    switch (daemon_.Start()) {
      case DaemonProcess::Started::kReady: return true;
      case DaemonProcess::Started::kDied: return Fail("the daemon does not start: " + daemon_.last_end());
      default: return Fail("the daemon did not become ready");
    }
  }

  // A kill while the data directory is being made: the next start must make it whole or begin anew.
  bool FreshRound(const std::string& failpoint) {
    std::filesystem::remove_all(options_.scratch + "/data");
    auto started = daemon_.Start(failpoint + "=kill");
    if (started == DaemonProcess::Started::kDied && daemon_.last_end() == "signal 9") ++hits_[failpoint];
    daemon_.Kill();
    daemon_.Detach();
    if (!StartNormally()) return false;
    std::string path = options_.scratch + "/mount/file";
    int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    bool written = fd >= 0 && write(fd, "hello", 5) == 5 && fsync(fd) == 0;
    close(fd);
    if (!written) return Fail("a filesystem whose making was killed does not work");
    if (!CheckIsClean()) return false;
    std::string stopped = daemon_.Stop();
    std::filesystem::remove_all(options_.scratch + "/data");
    return stopped.empty() || Fail(stopped);
  }

  std::string NextFailpoint() {
    if (!options_.only.empty()) return hits_[options_.only] == 0 ? options_.only : "";
    for (unsigned tries = 0; tries < kRoundsPerFailpointMax; ++tries) {
      for (const std::string& name : failpoints_) {
        if (hits_[name] == 0 && tries_[name] == tries) return name;
      }
    }
    return "";
  }

  bool Round() {
    // Failpoints first, then random moments, every third round random from the beginning.
    std::string failpoint = round_ % 3 == 2 && round_ < options_.rounds ? "" : NextFailpoint();
    if (failpoint.empty() && random_.OneIn(2) && !failpoints_.empty()) failpoint = random_.Pick(failpoints_);
    if (!options_.only.empty()) failpoint = options_.only;
    recovery_failpoint_.clear();
    if (auto before = kPassedAfterKillAt.find(failpoint); before != kPassedAfterKillAt.end()) {
      ++tries_[failpoint];
      recovery_failpoint_ = failpoint;
      failpoint = before->second;
    }
    std::string armed;
    if (!failpoint.empty()) {
      // The first try lets it pass a few times, later ones kill at once.
      uint64_t count = tries_[failpoint]++ == 0 || hits_[failpoint] > 0 ? random_.Between(1, 12) : 1;
      armed = fmt::format("{}=kill@{}", failpoint, count);
    }
    bool died_at_start = false;
    if (!Restart(armed, died_at_start)) return false;
    if (died_at_start) ++hits_[failpoint];
    if (!LoadAndKill(died_at_start ? "" : failpoint, armed)) return false;
    ++round_;
    return true;
  }

  // A clean stop and a start with the failpoint armed.
  bool Restart(const std::string& armed, bool& died_at_start) {
    if (armed.empty()) return true;
    if (daemon_.IsRunning()) {
      if (std::string stopped = daemon_.Stop(); !stopped.empty()) return Fail(stopped);
    }
    auto started = daemon_.Start(armed);
    if (started == DaemonProcess::Started::kReady) return true;
    if (started == DaemonProcess::Started::kTimedOut) return Fail("the daemon did not become ready");
    if (daemon_.last_end() != "signal 9") return Fail("the daemon does not start: " + daemon_.last_end());
    died_at_start = true;
    daemon_.Detach();
    return StartNormally();
  }

  bool LoadAndKill(const std::string& failpoint, const std::string& armed) {
    Sequence sequence([] { return 0; });
    LoadOptions load_options;
    load_options.mount = options_.scratch + "/mount";
    load_options.tool = daemon_.Tool();
    load_options.stalls = options_.scratch + "/stalls";
    load_options.round = round_;
    load_options.writer_count = options_.writers;
    load_options.seed = MixBits(options_.seed ^ (round_ * 7919ULL));
    load_options.collects =
        random_.OneIn(3) || failpoint.find("collect") != std::string::npos || failpoint.starts_with("store.");
    if (load_options.collects || kept_.size() > 9) load_options.remove = std::move(kept_), kept_.clear();
    Load load(load_options);
    std::string problem = load.Start(sequence);
    bool died = false;
    if (!problem.empty()) {
      // At a failpoint that the first operations passed? The process ends a moment after its mount.
      for (int i = 0; i < 400 && daemon_.IsRunning(); ++i) usleep(5000);
      if (daemon_.IsRunning()) return Fail(problem);
      if (daemon_.last_end() != "signal 9") return Fail("the daemon ended by itself: " + daemon_.last_end());
      ++hits_[failpoint];
      daemon_.Detach();
      return Recover() && CheckIsClean();
    }
    uint64_t wait_ms = random_.OneIn(12) ? random_.Between(5000, 7500) : random_.Skewed(2500) + 20;
    if (!failpoint.empty()) wait_ms = 3000;
    auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
    while (!died && std::chrono::steady_clock::now() < end && !load.HasFailed()) usleep(500);
    for (int i = 0; i < 400 && load.HasFailed() && daemon_.IsRunning(); ++i) usleep(5000);
    died = died || !daemon_.IsRunning();
    CrashPoint crash;
    if (!died && load.HasFailed()) {
      daemon_.Kill();
      load.Finish();
      return Fail("a call failed while the daemon lived: " + load.Failures());
    }
    crash.time_ns = died ? sequence.last_end_time_ns() : NowNs();
    if (died && daemon_.last_end() != "signal 9") {
      load.Finish();
      return Fail("the daemon ended by itself: " + daemon_.last_end());
    }
    if (died && !failpoint.empty()) ++hits_[failpoint];
    daemon_.Kill();
    load.Finish();
    crash.stalled_ns = load.StalledBefore(crash.time_ns);
    daemon_.Detach();
    return JudgeRound(load, crash, died ? armed : fmt::format("after {} ms", wait_ms));
  }

  // The start after a crash, which is sometimes killed too, and once more.
  bool Recover() {
    for (int i = 0; i < 2 && (!recovery_failpoint_.empty() || random_.OneIn(2)); ++i) {
      std::vector<std::string> missing;
      for (const std::string& name : failpoints_) {
        if (hits_[name] == 0 && !name.starts_with("daemon.")) missing.push_back(name);
      }
      std::string name = !options_.only.empty() ? options_.only : random_.Pick(missing.empty() ? failpoints_ : missing);
      if (random_.OneIn(3)) name = random_.Pick(std::vector<std::string>{"fs.start_orphans", "store.open_sealed"});
      if (!recovery_failpoint_.empty()) name = std::exchange(recovery_failpoint_, "");
      auto started = daemon_.Start(name + "=kill");
      bool died_there = started == DaemonProcess::Started::kDied && daemon_.last_end() == "signal 9";
      hits_[name] += died_there;
      if (started == DaemonProcess::Started::kTimedOut) return Fail("the daemon did not become ready");
      if (started == DaemonProcess::Started::kDied && !died_there) return Fail("no start: " + daemon_.last_end());
      daemon_.Kill();
      daemon_.Detach();
    }
    return StartNormally();
  }

  bool JudgeRound(const Load& load, const CrashPoint& crash, const std::string& how) {
    if (!Recover()) return false;
    Verdict verdict = Judge(load.writers(), crash, options_.scratch + "/mount");
    uint64_t records = 0;
    for (const Writer& writer : load.writers()) records += writer.track.size();
    const std::string stalled = crash.stalled_ns == 0 ? "" : fmt::format("; stalled {} ms", crash.stalled_ns / 1000000);
    fmt::print("round {:3}: killed {:40} {:5} steps, {:3} of them lost; {:3} names, {:3} files, {:6} KiB judged{}\n",
               round_, how, records, verdict.records_lost, verdict.names_checked, verdict.files_checked,
               verdict.bytes_checked / 1024, stalled);
    fflush(stdout);
    if (!verdict.violations.empty()) {
      for (const std::string& violation : verdict.violations) fmt::print("  VIOLATION {}\n", violation);
      return Fail("promises were broken");
    }
    for (const Writer& writer : load.writers()) kept_.push_back(writer.name);
    if (!kept_lines_.empty() && !KeptAreUnchanged()) return false;
    RememberKept();
    return CheckIsClean();
  }

  // What was there after an earlier crash is durable: no later one may change it.
  bool KeptAreUnchanged() {
    for (const auto& [name, lines] : kept_lines_) {
      bool still_kept = std::find(kept_.begin(), kept_.end(), name) != kept_.end();
      if (!still_kept) continue;
      TreeLines found = Digest(name);
      if (found != lines)
        return Fail(fmt::format("{} changed after an earlier crash:{}", name, Difference(lines, found)));
    }
    return true;
  }

  TreeLines Digest(const std::string& name) {
    std::string root = options_.scratch + "/mount/" + name;
    TreeLines lines = ReadTree(root);
    for (auto& [path, line] : lines) {
      if (!line.starts_with("f ")) continue;
      int fd = open((root + "/" + path).c_str(), O_RDONLY | O_CLOEXEC);
      uint64_t hash = 0;
      std::string buffer(1 << 20, '\0');
      ssize_t count = fd < 0 ? -1 : 0;
      while (fd >= 0 && (count = read(fd, buffer.data(), buffer.size())) > 0) {
        hash = MixBits(hash ^ std::hash<std::string_view>()(std::string_view(buffer.data(), count)));
      }
      if (fd >= 0) close(fd);
      line += count < 0 ? " unreadable" : fmt::format(" content {:x}", hash);
    }
    return lines;
  }

  // Two trees of late rounds stand for all.
  void RememberKept() {
    kept_lines_.clear();
    for (size_t i = 0; i < 2 && i < kept_.size(); ++i) {
      const std::string& name = kept_[random_.Below(kept_.size())];
      kept_lines_[name] = Digest(name);
    }
  }

  bool CheckIsClean() {
    CommandResult check = RunCommand({daemon_.Tool(), "check", options_.scratch + "/mount", "--json"});
    return check.exit_code == 0 || Fail(fmt::format("check ended with {}: {}", check.exit_code, check.output));
  }

  nlohmann::json Ask(const char* command) {
    return nlohmann::json::parse(MustRun({daemon_.Tool(), command, options_.scratch + "/mount", "--json"}));
  }

  uint64_t DiskBytes(const char* part) {
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(options_.scratch + "/data/" + part)) {
      struct stat info;
      if (lstat(entry.path().c_str(), &info) == 0) bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
    return bytes;
  }

  // What a collection freed may be given back a while after it.
  bool CheckSpace(const char* when, uint64_t live) {
    const uint64_t segments_max = live + live / 10 + kSegmentsRest;
    uint64_t segments = 0, metadata = 0;
    for (int i = 0; i < 600; ++i) {
      segments = DiskBytes("segments");
      metadata = DiskBytes("metadata");
      if (segments <= segments_max && metadata <= kMetadataRest) break;
      usleep(100000);
    }
    fmt::print("{}: {} KiB live; on disk {} KiB of segments, {} KiB of metadata\n", when, live / 1024, segments / 1024,
               metadata / 1024);
    if (segments > segments_max || metadata > kMetadataRest) {
      fmt::print("{}\n", MustRun({"find", options_.scratch + "/data", "-type", "f", "-printf", "%P %b blocks\n"}));
    }
    if (segments > segments_max) return Fail("the segments hold more than 1.1 times the live bytes");
    if (metadata > kMetadataRest) return Fail("the metadata of this little takes too much of the disk");
    return true;
  }

  // After a collection nothing unreferenced is left: a second one finds nothing, and without files nothing is there.
  bool FinalCollection() {
    Ask("gc");
    auto second = Ask("gc");
    if (second["chunks_freed"] != 0) return Fail("a second collection freed chunks: " + second.dump());
    auto status = Ask("status");
    if (!CheckSpace("collected", status["unique_bytes"])) return false;
    for (const auto& entry : std::filesystem::directory_iterator(options_.scratch + "/mount")) {
      std::filesystem::remove_all(entry.path());
    }
    Ask("gc");
    status = Ask("status");
    if (status["chunk_count"] != 0) return Fail("chunks are left that nothing refers to");
    if (!CheckSpace("emptied", status["unique_bytes"])) return false;
    if (!CheckIsClean()) return false;
    std::string stopped = daemon_.Stop();
    return stopped.empty() || Fail(stopped);
  }

  void PrintFailpoints() {
    fmt::print("\n{:36} {:>10}\n", "failpoint", "kills at it");
    for (const std::string& name : failpoints_) fmt::print("{:36} {:>10}\n", name, hits_[name]);
  }

  const Options& options_;
  Random random_;
  DaemonProcess daemon_;
  std::vector<std::string> failpoints_;
  std::map<std::string, unsigned> hits_, tries_;
  std::string recovery_failpoint_;  // where the start after this round's crash is to be killed
  unsigned round_ = 0;
  std::vector<std::string> kept_;                // directories of earlier rounds
  std::map<std::string, TreeLines> kept_lines_;  // some of them, with contents
};

int Main(int argc, char** argv) {
  Options options = ParseOptions(argc, argv);
  fmt::print("kill_test --seed {} --rounds {} --writers {}\n", options.seed, options.rounds, options.writers);
  fflush(stdout);
  bool good = KillTest(options).Run();
  fmt::print("{}\n", good ? "PASSED" : "FAILED");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace cairnfs::testing

int main(int argc, char** argv) { return cairnfs::testing::Main(argc, argv); }
