// KvStore on RocksDB: what a namespace operation costs, and what a flush does.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "kv/local_store.h"
#include "support.h"

namespace cairnfs::bench {
namespace {

constexpr uint64_t kKeys = 50'000;

struct Kv {
  ScratchDirectory directory;
  std::unique_ptr<kv::KvEngine> engine;
  std::unique_ptr<kv::LocalKvStore> store;

  Kv() {
    kv::RocksOptions rocks;
    rocks.path = directory.path();
    engine = kv::OpenRocksEngine(rocks).value();
    store = kv::LocalKvStore::Open(*engine).value();
  }
};

std::string Key(uint64_t number) { return fmt::format("D{:016x}", number * 0x9e37'79b9'7f4a'7c15); }

// As a create does: a name that must be absent, an inode, the directory's times.
kv::Transaction CreateLike(uint64_t number) {
  kv::Transaction transaction;
  transaction.IfAbsent(Key(number)).IfExists("root");
  transaction.Put(Key(number), "0123456789abcdef").Put("I" + Key(number), std::string(120, 'i'));
  transaction.Put("times", "0123456789abcdef");
  return transaction;
}

void KvCommit(benchmark::State& state) {
  Kv kv;
  if (!kv.store->Commit({}, kv::Transaction().Put("root", "x")).ok()) state.SkipWithError("commit");
  uint64_t number = 0;
  for (auto _ : state) {
    if (!kv.store->Commit({}, CreateLike(number++)).ok()) state.SkipWithError("commit");
  }
}

void KvGet(benchmark::State& state) {
  Kv kv;
  for (uint64_t i = 0; i < kKeys; i++) {
    if (!kv.store->Commit({}, kv::Transaction().Put(Key(i), std::string(120, 'v'))).ok()) state.SkipWithError("commit");
  }
  if (!kv.store->Sync({}).ok()) state.SkipWithError("sync");
  uint64_t next = 0;
  for (auto _ : state) {
    next = (next + 7919) % kKeys;
    auto found = kv.store->Get({}, Key(next));
    if (!found.ok() || !found->has_value()) state.SkipWithError("wrong answer");
  }
}

// One synced batch of as many entries as a thousand creates leave.
void KvFlushOfThousandCreates(benchmark::State& state) {
  Kv kv;
  if (!kv.store->Commit({}, kv::Transaction().Put("root", "x")).ok()) state.SkipWithError("commit");
  uint64_t number = 0;
  for (auto _ : state) {
    state.PauseTiming();
    for (int i = 0; i < 1000; i++) {
      if (!kv.store->Commit({}, CreateLike(number++)).ok()) state.SkipWithError("commit");
    }
    state.ResumeTiming();
    if (!kv.store->Sync({}).ok()) state.SkipWithError("sync");
  }
}

BENCHMARK(KvCommit);
BENCHMARK(KvGet);
BENCHMARK(KvFlushOfThousandCreates)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace cairnfs::bench
