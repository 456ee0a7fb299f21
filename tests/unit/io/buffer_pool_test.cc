#include "io/buffer_pool.h"

#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <functional>
#include <set>
#include <string>

#include "base/clock.h"

namespace cairnfs::io {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<BufferPool> MakePool(size_t count, uint32_t reserved_count) {
  auto pool =
      BufferPool::Create({.size_bytes_max = count * BufferPool::kBufferBytes + 100, .reserved_count = reserved_count});
  EXPECT_TRUE(pool.ok()) << pool.error().message;
  return std::move(*pool);
}

TEST(BufferPool, BuffersAreAlignedDistinctAndWritable) {
  auto pool = MakePool(6, 1);
  EXPECT_EQ(pool->count(), 6u);
  std::vector<BufferRef> buffers;
  std::set<std::byte*> payloads;
  for (int i = 0; i < 5; i++) {
    buffers.push_back(pool->Acquire());
    ASSERT_TRUE(buffers.back());
    std::byte* payload = buffers.back().payload();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(payload) % kPageBytes, 0u);
    EXPECT_EQ(buffers.back().headroom() + BufferPool::kHeadroomBytes, payload);
    std::memset(buffers.back().headroom(), i, BufferPool::kBufferBytes);
    payloads.insert(payload);
  }
  EXPECT_EQ(payloads.size(), 5u);
  for (int i = 0; i < 5; i++) {
    EXPECT_EQ(buffers[static_cast<size_t>(i)].headroom()[0], static_cast<std::byte>(i));
    EXPECT_EQ(buffers[static_cast<size_t>(i)].payload()[BufferPool::kPayloadBytes - 1], static_cast<std::byte>(i));
  }
  EXPECT_EQ(pool->free_count(), 1u);
}

// "dd" of proc(5).
TEST(BufferPool, WhatItHoldsComesIntoNoCoreFile) {
  auto pool = MakePool(6, 1);
  const BufferRef buffer = pool->Acquire();
  const auto address = reinterpret_cast<uintptr_t>(buffer.payload());
  std::ifstream maps("/proc/self/smaps");
  bool is_it = false;
  std::string flags;
  for (std::string line; flags.empty() && std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2)
      is_it = begin <= address && address < end;
    if (is_it && line.starts_with("VmFlags:")) flags = line + " ";
  }
  EXPECT_NE(flags.find(" dd "), std::string::npos) << flags;
}

TEST(BufferPool, TheLastReferenceGivesBack) {
  auto pool = MakePool(4, 1);
  BufferRef first = pool->Acquire();
  EXPECT_TRUE(first.Unique());
  BufferRef second = first;
  EXPECT_FALSE(first.Unique());
  EXPECT_EQ(first.payload(), second.payload());
  BufferRef third = std::move(first);
  EXPECT_FALSE(first);  // NOLINT: what a move leaves is asserted
  second = BufferRef();
  EXPECT_TRUE(third.Unique());
  EXPECT_EQ(pool->free_count(), 3u);
  Slice slice{third, third.payload(), 100};
  third = BufferRef();
  EXPECT_EQ(pool->free_count(), 3u);
  EXPECT_EQ(slice.Sub(10, 20).size, 20u);
  slice = Slice();
  EXPECT_EQ(pool->free_count(), 4u);
}

TEST(BufferPool, TheReserveIsForAcquireReservedOnly) {
  auto pool = MakePool(4, 2);
  std::vector<BufferRef> held;
  held.push_back(pool->Acquire());
  held.push_back(pool->Acquire());
  EXPECT_FALSE(pool->TryAcquire());
  held.push_back(pool->AcquireReserved());
  held.push_back(pool->AcquireReserved());
  EXPECT_TRUE(held.back());
  EXPECT_EQ(pool->free_count(), 0u);
  EXPECT_FALSE(pool->TryAcquire());
}

TEST(BufferPool, AcquireWaitsAndCallsThePressureCallbackAgainAndAgain) {
  auto pool = MakePool(4, 1);
  std::atomic<int> calls = 0;
  std::atomic<bool> got_stuck = false;
  pool->SetPressureCallback([&](std::chrono::milliseconds without_release) {
    calls++;
    if (without_release >= 2 * BufferPool::kPressureInterval) got_stuck = true;
  });
  std::vector<BufferRef> held;
  for (int i = 0; i < 3; i++) held.push_back(pool->Acquire());
  EXPECT_EQ(calls, 0);
  std::atomic<bool> got = false;
  std::thread waiter([&] {
    BufferRef buffer = pool->Acquire();
    EXPECT_TRUE(buffer);
    got = true;
  });
  while (!got_stuck) Clock::SleepFor(1ms);
  EXPECT_GE(calls, 3);
  EXPECT_FALSE(got);
  held.pop_back();
  waiter.join();
  EXPECT_TRUE(got);
}

// A freed buffer that only the reserve may use must wake the one who may use it.
TEST(BufferPool, AReservedWaiterIsWokenBesideAnOrdinaryOne) {
  auto pool = MakePool(2, 1);
  BufferRef ordinary = pool->Acquire();
  BufferRef reserved = pool->AcquireReserved();
  std::atomic<bool> ordinary_got = false;
  std::thread ordinary_waiter([&] { ordinary_got = static_cast<bool>(pool->Acquire()); });
  Clock::SleepFor(10ms);
  std::atomic<bool> release = false;
  std::atomic<bool> reserved_got = false;
  std::thread reserved_waiter([&] {
    BufferRef buffer = pool->AcquireReserved();
    reserved_got = static_cast<bool>(buffer);
    while (!release) Clock::SleepFor(1ms);
  });
  Clock::SleepFor(10ms);
  reserved = BufferRef();
  while (!reserved_got) Clock::SleepFor(1ms);
  EXPECT_FALSE(ordinary_got);
  release = true;
  reserved_waiter.join();
  ordinary = BufferRef();
  ordinary_waiter.join();
  EXPECT_TRUE(ordinary_got);
}

TEST(BufferPool, CloseWakesAllWhoWait) {
  auto pool = MakePool(2, 1);
  BufferRef first = pool->AcquireReserved();
  BufferRef second = pool->AcquireReserved();
  std::thread ordinary([&] { EXPECT_FALSE(pool->Acquire()); });
  std::thread reserved([&] { EXPECT_FALSE(pool->AcquireReserved()); });
  Clock::SleepFor(10ms);
  pool->Close();
  ordinary.join();
  reserved.join();
  EXPECT_FALSE(pool->TryAcquire());
}

TEST(BufferPool, AnAcquireGivesUpWhenItIsToldTo) {
  auto pool = MakePool(2, 1);
  BufferRef held = pool->Acquire();
  std::atomic<int> asked = 0;
  EXPECT_FALSE(pool->Acquire([&](std::chrono::milliseconds) { return ++asked == 3; }));
  EXPECT_EQ(asked, 3);
  held = BufferRef();
  EXPECT_TRUE(pool->Acquire([](std::chrono::milliseconds) { return true; })) << "there is one";
}

// Many writes wait one after another for what does not come.
TEST(BufferPool, WhoComesLaterIsToldHowLongNothingCameFree) {
  auto pool = MakePool(2, 1);
  BufferRef held = pool->Acquire();
  EXPECT_FALSE(
      pool->Acquire([](auto without_release) { return without_release >= 3 * BufferPool::kPressureInterval; }));
  std::vector<std::chrono::milliseconds> told;
  auto first_time = [&](std::chrono::milliseconds without_release) {
    told.push_back(without_release);
    return true;
  };
  EXPECT_FALSE(pool->Acquire(first_time));
  held = BufferRef();
  held = pool->Acquire();
  ASSERT_TRUE(held);
  EXPECT_FALSE(pool->Acquire(first_time));
  ASSERT_EQ(told.size(), 2u);
  EXPECT_GE(told[0], 3 * BufferPool::kPressureInterval);
  EXPECT_EQ(told[1], 0ms) << "one came free meanwhile";
}

// Reads go on while nothing comes free for writes.
TEST(BufferPool, WhatGoesBackToTheReserveHasNotComeFreeForOthers) {
  auto pool = MakePool(4, 2);
  const std::vector<BufferRef> held{pool->Acquire(), pool->Acquire()};
  const auto deadline = Clock::Now() + 60s;
  bool is_told = false;
  EXPECT_FALSE(pool->Acquire([&](std::chrono::milliseconds without_release) {
    EXPECT_TRUE(pool->AcquireReserved());  // and is given back at once
    is_told = without_release >= 4 * BufferPool::kPressureInterval;
    return is_told || Clock::Now() > deadline;
  }));
  EXPECT_TRUE(is_told);
}

TEST(BufferPool, PressureBelowAnEighth) {
  auto pool = MakePool(16, 0);
  std::vector<BufferRef> held;
  for (int i = 0; i < 14; i++) held.push_back(pool->Acquire());
  EXPECT_FALSE(pool->UnderPressure());
  held.push_back(pool->Acquire());
  EXPECT_TRUE(pool->UnderPressure());
}

TEST(BufferPool, ManyThreadsNeverShareABuffer) {
  auto pool = MakePool(6, 2);
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; t++) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3000; i++) {
        BufferRef buffer = t % 2 == 0 ? pool->Acquire() : pool->AcquireReserved();
        std::memset(buffer.payload(), t, 64);
        BufferRef copy = buffer;
        buffer = BufferRef();
        for (int b = 0; b < 64; b++) ASSERT_EQ(copy.payload()[b], static_cast<std::byte>(t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->free_count(), 6u);
}

// In memory at the moment.
size_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  size_t mapped = 0, resident = 0;
  file >> mapped >> resident;
  return resident * kPageBytes;
}

bool Eventually(const std::function<bool()>& is_so) {
  for (int i = 0; i < 60'000 && !is_so(); i++) Clock::SleepFor(1ms);
  return is_so();
}

TEST(BufferPool, TakesMemoryAsItIsUsed) {
  const size_t before = ResidentBytes();
  constexpr size_t kFirst = BufferPool::kFirstTouchedCount;
  auto pool = MakePool(8 * kFirst, 2);
  EXPECT_EQ(pool->touched_count(), kFirst);
  EXPECT_TRUE(Eventually([&] { return ResidentBytes() >= before + kFirst * BufferPool::kBufferBytes; }));
  std::vector<BufferRef> held;
  for (size_t i = 0; i < kFirst / 4; i++) held.push_back(pool->Acquire());
  Clock::SleepFor(200ms);
  EXPECT_EQ(pool->touched_count(), kFirst) << "half of them are free";
  EXPECT_LT(ResidentBytes(), before + (kFirst + 32) * BufferPool::kBufferBytes);
  for (size_t i = held.size(); i < kFirst; i++) held.push_back(pool->Acquire());
  EXPECT_TRUE(Eventually([&] { return pool->touched_count() >= 2 * kFirst - 1; })) << pool->touched_count();
  held.clear();
  Clock::SleepFor(200ms);
  EXPECT_LT(pool->touched_count(), 2 * kFirst + 32) << "nobody wants more";
}

TEST(BufferPool, HandsOutAllThereIsWhetherItWasTouchedOrNot) {
  auto pool = MakePool(3 * BufferPool::kFirstTouchedCount, 2);
  std::vector<BufferRef> held;
  while (pool->free_count() > 2) held.push_back(pool->Acquire());
  EXPECT_EQ(held.size(), pool->count() - 2);
  EXPECT_TRUE(Eventually([&] { return pool->touched_count() == pool->count(); }));
  EXPECT_TRUE(pool->HasFreeLessThan(4));
  EXPECT_FALSE(pool->TryAcquire());
  held.clear();
  EXPECT_FALSE(pool->HasFreeLessThan(4));
}

TEST(BufferPool, TouchesAllWhereThatIsAskedFor) {
  auto pool =
      BufferPool::Create({.size_bytes_max = 256 * BufferPool::kBufferBytes, .reserved_count = 2, .touches_all = true});
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ((*pool)->touched_count(), 256u);
  EXPECT_TRUE(Eventually([&] { return ResidentBytes() >= 256 * BufferPool::kBufferBytes; }));
}

TEST(BufferPool, LendsHalfAtMostAndNeverWhatItNeedsItself) {
  auto pool = MakePool(64, 4);
  EXPECT_FALSE(pool->Borrow(33 * BufferPool::kBufferBytes).has_value());
  EXPECT_FALSE(pool->Borrow(UINT64_MAX).has_value());
  auto first = pool->Borrow(20 * BufferPool::kBufferBytes - 1);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->bytes(), 20 * BufferPool::kBufferBytes);
  EXPECT_EQ(pool->lent_count(), 20u);
  EXPECT_EQ(pool->free_count(), 44u);
  EXPECT_FALSE(pool->Borrow(13 * BufferPool::kBufferBytes).has_value());
  {
    auto second = pool->Borrow(12 * BufferPool::kBufferBytes);
    ASSERT_TRUE(second.has_value());
    std::vector<BufferRef> taken;
    while (BufferRef buffer = pool->TryAcquire()) taken.push_back(std::move(buffer));
    EXPECT_EQ(taken.size(), 28u);  // all but the reserve
    EXPECT_EQ(pool->touched_count(), 32u);
    EXPECT_TRUE(pool->UnderPressure()) << "what is lent counts for nobody";
    second.reset();
    EXPECT_TRUE(pool->TryAcquire());
    EXPECT_FALSE(pool->Borrow(11 * BufferPool::kBufferBytes).has_value()) << "it would be under pressure";
  }
  MemoryLoan moved = *std::move(first);
  moved.Add(*pool->Borrow(2 * BufferPool::kBufferBytes));
  moved.Add(MemoryLoan());
  EXPECT_EQ(moved.bytes(), 22 * BufferPool::kBufferBytes);
  EXPECT_EQ(pool->lent_count(), 22u);
  moved = MemoryLoan();
  EXPECT_EQ(pool->lent_count(), 0u);
  EXPECT_EQ(pool->free_count(), 64u);
}

TEST(BufferPool, WhoWaitsGetsWhatALoanGivesBack) {
  auto pool = MakePool(16, 1);
  auto loan = pool->Borrow(8 * BufferPool::kBufferBytes);
  ASSERT_TRUE(loan.has_value());
  std::vector<BufferRef> taken;
  while (BufferRef buffer = pool->TryAcquire()) taken.push_back(std::move(buffer));
  std::atomic<int> got{0};
  std::vector<std::thread> waiting;
  for (int i = 0; i < 3; i++) {
    waiting.emplace_back([&] {
      const BufferRef buffer = pool->Acquire();
      got++;
      while (got < 3) Clock::SleepFor(1ms);
    });
  }
  loan.reset();
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(got, 3);
}

// The memory that the mapping around `address` has, by /proc/self/smaps.
size_t ResidentBytesAt(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  bool is_it = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2)
      is_it = begin <= reinterpret_cast<uintptr_t>(address) && reinterpret_cast<uintptr_t>(address) < end;
    if (is_it && line.starts_with("Rss:")) return std::stoul(line.substr(4)) * kKiB;
  }
  return 0;
}

TEST(BufferPool, WhatIsLentHasNoMemoryInThePool) {
  auto pool = BufferPool::Create(
      {.size_bytes_max = 64 * BufferPool::kBufferBytes + 100, .reserved_count = 1, .touches_all = true});
  ASSERT_TRUE(pool.ok());
  std::vector<BufferRef> all;
  for (int i = 0; i < 63; i++) all.push_back((*pool)->Acquire());
  for (const BufferRef& buffer : all) std::memset(buffer.headroom(), 7, BufferPool::kBufferBytes);
  const void* inside = all.front().payload();
  all.clear();
  const size_t before = ResidentBytesAt(inside);
  EXPECT_GE(before, 62 * BufferPool::kBufferBytes);
  auto loan = (*pool)->Borrow(32 * BufferPool::kBufferBytes);
  ASSERT_TRUE(loan.has_value());
  EXPECT_LE(ResidentBytesAt(inside), before - 30 * BufferPool::kBufferBytes);
  EXPECT_LE((*pool)->touched_count(), 64u);
  loan.reset();
  for (int i = 0; i < 63; i++) all.push_back((*pool)->Acquire());
  for (const BufferRef& buffer : all) std::memset(buffer.headroom(), 8, BufferPool::kBufferBytes);
}

TEST(BufferPool, RefusesSizesThatCannotWork) {
  auto small = BufferPool::Create({.size_bytes_max = 3 * BufferPool::kBufferBytes, .reserved_count = 2});
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(small.error().message.find("give it 4227072 bytes at least"), std::string::npos) << small.error().message;
  EXPECT_FALSE(BufferPool::Create({.size_bytes_max = 0, .reserved_count = 0}).ok());
  auto large = BufferPool::Create({.size_bytes_max = uint64_t{1} << 50, .reserved_count = 2});
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace cairnfs::io
