// Random saves, deletions and collections with the power cut at a random operation, again and again.
//
// The engine also holds names ("K" + digest), as the namespace would: a name is written only after the Sync that
// covers its chunk. The oracle: after each cut, the store opens, and every chunk whose name survived reads back.
// CAIRNFS_STORE_CRASH_SEED replays one seed; the last test leaves out each sync in turn and expects to be caught.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <set>

#include "../../support/sanitizers.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "crash_engine.h"
#include "store_fixture.h"

namespace cairnfs::store {
namespace {

class CrashRun {
 public:
  explicit CrashRun(uint64_t seed) : random_(seed) {
    for (uint64_t i = 0; i < kChunks; ++i) chunks_.push_back(MakeChunk(seed * 1000 + i, Size(i)));
  }

  // What was found wrong; empty: nothing.
  std::string Run() {
    for (int round = 0; round < 6 && problem_.empty(); ++round) {
      if (!Reopen()) break;
      Verify();
      power_.Arm(1 + random_() % 400, [this, seed = random_()] { Cut(seed); });
      while (!cut_ && problem_.empty()) Step();
      store_.reset();
      power_.Disarm();
    }
    if (problem_.empty() && Reopen()) Verify();
    store_.reset();
    return problem_;
  }

 private:
  static constexpr uint64_t kChunks = 60;
  size_t Size(uint64_t i) { return i % 5 == 0 ? 1 + i : 1000 + (i * 7919) % 50'000; }
  static std::string NameKey(const Digest& digest) { return "K" + std::string(digest.AsKey()); }

  void Cut(uint64_t seed) {
    switched_.Refuse(true);
    engine_.Crash(seed);
    disk_.Crash(seed + 1);
    cut_ = true;
  }

  bool Reopen() {
    StoreOptions options;
    options.segment_bytes = 128 * kKiB;
    options.free_segments_bytes_max = 512 * kKiB;
    options.reserve_bytes = kMiB;
    options.verify_threads = 1;
    cut_ = false;
    switched_.Refuse(false);
    engine_.Restart();
    auto store = LocalChunkStore::Open(switched_, engine_, *pool_, options);
    if (!store.ok()) {
      problem_ = "does not open: " + store.error().message;
      return false;
    }
    store_ = std::move(store).value();
    return true;
  }

  std::set<Digest> Names() {
    std::set<Digest> names;
    for (const TestChunk& chunk : chunks_) {
      auto value = engine_.Get(NameKey(chunk.digest), nullptr);
      if (value.ok() && value->has_value()) names.insert(chunk.digest);
    }
    return names;
  }

  void Verify() {
    std::set<Digest> names = Names();
    for (const TestChunk& chunk : chunks_) {
      if (!names.contains(chunk.digest)) continue;
      auto text = GetText(*store_, chunk.digest);
      if (!text.ok()) {
        problem_ = "a named chunk is lost: " + text.error().message;
      } else if (*text != chunk.bytes) {
        problem_ = "a chunk reads back wrong";
      }
    }
    Status checked = store_->Check({}, [this](const CheckProblem& problem) { problem_ = "check: " + problem.what; });
    if (!checked.ok() && problem_.empty()) problem_ = "check: " + checked.error().message;
  }

  void Step() {
    switch (random_() % 8) {
      case 0: Unname(); break;
      case 1: Collect(); break;
      default: Save();
    }
  }

  // Some chunks, a sync, then their names, sometimes synced.
  void Save() {
    std::vector<PutResult> puts;
    std::vector<kv::EngineWrite> names;
    for (uint64_t count = 1 + random_() % 6; count > 0; --count) {
      const TestChunk& chunk = chunks_[random_() % chunks_.size()];
      auto put = PutChunk(*store_, chunk);
      if (!put.ok()) return;
      puts.push_back(std::move(*put));
      names.push_back({NameKey(chunk.digest), "1"});
    }
    if (random_() % 4 == 0) return;  // given up
    if (!(random_() % 2 == 0 ? store_->Sync() : store_->SyncWithEngine()).ok()) return;
    (void)engine_.Write(names, kv::SyncedIf(random_() % 2 == 0));
  }

  void Unname() {
    std::vector<kv::EngineWrite> writes;
    for (int i = 0; i < 12; ++i) writes.push_back({NameKey(chunks_[random_() % chunks_.size()].digest), std::nullopt});
    (void)engine_.Write(writes, kv::SyncedIf(random_() % 2 == 0));
  }

  void Collect() {
    store_->BeginCollection();
    // As the namespace does: what the marker sees must be durable, or a deletion that is lost would come back.
    (void)engine_.Write({}, kv::WriteMode::kSynced);
    std::set<Digest> names = Names();
    if (cut_) return store_->AbortCollection();
    SweepProgress progress;
    (void)store_->Sweep(
        {}, [&](const Digest& digest) { return names.contains(digest); }, SweepOptions(), progress);
  }

  std::mt19937_64 random_;
  std::vector<TestChunk> chunks_;
  std::string problem_;
  PowerSwitch power_;
  io::MemoryDisk disk_{io::MemoryDisk::Options{.size_bytes = 64 * kMiB}};
  SwitchedDisk switched_{disk_, power_};
  CrashEngine engine_{power_};
  std::unique_ptr<io::BufferPool> pool_ = MakePool(20 * kMiB);
  std::unique_ptr<LocalChunkStore> store_;
  std::atomic<bool> cut_{false};
};

std::string RunSeed(uint64_t seed) { return CrashRun(seed).Run(); }

TEST(StoreCrash, NothingNamedIsLost) {
  spdlog::set_level(spdlog::level::off);
  if (const char* one = std::getenv("CAIRNFS_STORE_CRASH_SEED")) {
    EXPECT_EQ(RunSeed(std::strtoull(one, nullptr, 10)), "");
    return;
  }
  for (uint64_t seed = 1; seed <= 12 / kSlowdown; ++seed) {
    EXPECT_EQ(RunSeed(seed), "") << "replay with CAIRNFS_STORE_CRASH_SEED=" << seed;
  }
}

// In a process of its own, because an armed failpoint stays armed: exit status 0 when a problem was found.
int FindPlanted(const std::string& failpoint, uint64_t seeds) {
  pid_t child = fork();
  if (child == 0) {
    spdlog::set_level(spdlog::level::off);
    if (!Failpoint::Arm(failpoint + "=skip").ok()) _exit(2);
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      std::string problem = RunSeed(seed);
      if (problem.empty()) continue;
      std::printf("%-32s caught with seed %llu: %s\n", failpoint.c_str(), static_cast<unsigned long long>(seed),
                  problem.c_str());
      std::fflush(stdout);
      _exit(0);
    }
    std::printf("%-32s NOT caught with %llu seeds\n", failpoint.c_str(), static_cast<unsigned long long>(seeds));
    std::fflush(stdout);
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

TEST(StoreCrash, EachSyncLeftOutIsCaught) {
  int count = 0;
  for (const Failpoint* point : Failpoint::All()) {
    std::string name = point->name();
    if (point->kind() != Failpoint::Kind::kSkippable || !name.starts_with("store.")) continue;
    EXPECT_EQ(FindPlanted(name, 300), 0) << name;
    ++count;
  }
  EXPECT_GE(count, 6);
}

}  // namespace
}  // namespace cairnfs::store
