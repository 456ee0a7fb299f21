// A full disk below the database, on a small tmpfs: refused writes, and recovery once there is room. Needs root.
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <thread>

#include "../../support/few_descriptors.h"
#include "base/clock.h"
#include "kv/rocks_support.h"
#include "support.h"

namespace cairnfs::kv {
namespace {

namespace fs = std::filesystem;

class NoSpace : public testing::Test {
 protected:
  void SetUp() override {
    mounted_ = mount("none", directory_.path().c_str(), "tmpfs", 0, "size=24m") == 0;
    if (!mounted_) GTEST_SKIP() << "cannot mount a tmpfs here";
  }
  void TearDown() override {
    engine_.reset();
    if (mounted_) umount2(directory_.path().c_str(), MNT_DETACH);
  }

  RocksOptions Options() const {
    RocksOptions options;
    options.path = directory_.path() + "/db";
    return options;
  }
  void Open() { engine_ = MustOpenRocks(Options().path); }
  Status Write(const std::string& key, size_t bytes = 100) {
    return engine_->Write({EngineWrite{key, std::string(bytes, 'v')}}, WriteMode::kSynced);
  }
  // Takes all the room there is, to the last byte.
  void Fill() {
    std::ofstream file(directory_.path() + "/ballast", std::ios::app | std::ios::binary);
    for (size_t piece = 1 << 20; piece > 0; piece /= 2) {
      while (file.write(std::string(piece, 'x').data(), static_cast<std::streamsize>(piece)).flush()) continue;
      file.clear();
    }
  }
  // Takes the room there is but for about `bytes`.
  void Leave(uint64_t bytes) {
    std::ofstream file(directory_.path() + "/ballast", std::ios::app | std::ios::binary);
    const std::string piece(64 << 10, 'x');
    for (uint64_t room = fs::space(directory_.path()).available; room > bytes + piece.size(); room -= piece.size()) {
      file << piece;
    }
  }
  // The same, to the page.
  void LeavePages(uint64_t bytes) {
    Fill();
    const uint64_t ballast = fs::file_size(directory_.path() + "/ballast") & ~uint64_t{4095};
    fs::resize_file(directory_.path() + "/ballast", ballast - bytes);
  }
  void MakeRoom() { fs::remove(directory_.path() + "/ballast"); }
  // Writes until one is refused. The count that was not.
  int WriteUntilFull() {
    for (int i = 0;; ++i) {
      Status status = Write("fill" + std::to_string(i), 4000);
      if (status.ok()) continue;
      EXPECT_EQ(status.error().code, ErrorCode::kNoSpace) << status.error().message;
      return i;
    }
  }

  TemporaryDirectory directory_;
  bool mounted_ = false;
  std::unique_ptr<KvEngine> engine_;
};

TEST_F(NoSpace, WriteIsRefusedAndLaterWorks) {
  Open();
  MustSucceed(Write("before"));
  Fill();
  int count = WriteUntilFull();
  EXPECT_EQ(Write("refused").error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(Must(engine_->Get("before")).has_value());
  MakeRoom();
  MustSucceed(Write("after"));
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < count; ++i) EXPECT_TRUE(Must(engine_->Get("fill" + std::to_string(i))).has_value());
    EXPECT_TRUE(Must(engine_->Get("before")).has_value());
    EXPECT_TRUE(Must(engine_->Get("after")).has_value());
    engine_.reset();
    Open();
  }
}

// The first write into an empty memory table finds the disk full: there is nothing to flush then.
TEST_F(NoSpace, FirstWriteAfterOpeningIsRefused) {
  Open();
  Fill();
  int count = WriteUntilFull();
  printf("%d writes fitted\n", count);
  MakeRoom();
  for (int i = 0; i < 100; ++i) MustSucceed(Write("after" + std::to_string(i), 5000));
  engine_.reset();
  Open();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Must(engine_->Get("after" + std::to_string(i))).has_value()) << i;
}

// RocksDB's words for ENOSPC from the log's append and from its sync. What the second answers may be there later, so it
// must not be told as "did not run".
TEST(NoSpaceWords, ASyncWithoutSpaceLeavesTheWriteUnknown) {
  const char* no_space = "No space left on device";
  for (const std::string path : {"/db", "/mnt/async/db", "/mnt/While fsync/x.log/db"}) {
    for (const char* call : {"While appending to file: ", "While write random read/write file at offset 12: "}) {
      const auto append = rocksdb::Status::NoSpace(call + path + "/000012.log", no_space);
      EXPECT_EQ(ToWriteError(append, path).code, ErrorCode::kNoSpace) << call << path;
    }
    for (const char* call : {"While fdatasync: ", "While fsync: ", "While sync_file_range returned 28: ",
                             "While fdatasync random read/write file: "}) {
      const auto sync = rocksdb::Status::NoSpace(call + path + "/000012.log", no_space);
      EXPECT_EQ(ToWriteError(sync, path).code, ErrorCode::kIo) << call << path;
    }
  }
}

TEST_F(NoSpace, AgainAndAgain) {
  Open();
  for (int round = 0; round < 8; ++round) {
    Fill();
    WriteUntilFull();
    MakeRoom();
    MustSucceed(Write("round" + std::to_string(round), 60'000));
    if (round % 3 == 2) {
      engine_.reset();
      Open();
    }
    for (int i = 0; i <= round; ++i) EXPECT_TRUE(Must(engine_->Get("round" + std::to_string(i))).has_value()) << i;
  }
}

TEST_F(NoSpace, StoreKeepsItsCommitsUntilThereIsRoom) {
  Open();
  std::unique_ptr<LocalKvStore> store = Must(LocalKvStore::Open(*engine_));
  Must(store->Commit({}, Transaction().Put("a", std::string(8 << 20, 'x'))));
  Fill();
  Status status = store->Sync({});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kNoSpace);
  Must(store->Commit({}, Transaction().Put("b", "2")));
  EXPECT_FALSE(store->Sync({}).ok());
  EXPECT_EQ(Must(store->Get({}, "b"))->value, "2");
  MakeRoom();
  MustSucceed(store->Sync({}));
  store.reset();
  engine_.reset();
  Open();
  store = Must(LocalKvStore::Open(*engine_));
  EXPECT_EQ(Must(store->Get({}, "a"))->value.size(), size_t{8} << 20);
  EXPECT_EQ(Must(store->Get({}, "b"))->value, "2");
}

TEST_F(NoSpace, OpeningOnAFullDiskSaysSo) {
  Open();
  MustSucceed(Write("a"));
  engine_.reset();
  Fill();
  Result<std::unique_ptr<KvEngine>> engine = OpenRocksEngine(Options());
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().code, ErrorCode::kNoSpace) << engine.error().message;
  MakeRoom();
  engine = MustOpenRocks(Options().path);
  EXPECT_TRUE(Must((*engine)->Get("a")).has_value());
}

// A crash left it, and only what opens the database removes it.
TEST_F(NoSpace, AHalfMadeTableHoldsUpNoOpening) {
  Open();
  for (int i = 0; i < 20; ++i) MustSucceed(Write("key" + std::to_string(i), 100'000));
  engine_.reset();
  {
    std::ofstream file(directory_.path() + "/db/009999.sst", std::ios::binary);
    const std::string piece(4 << 10, 'x');
    while (file.write(piece.data(), static_cast<std::streamsize>(piece.size())).flush()) continue;
  }
  Open();
  EXPECT_FALSE(fs::exists(directory_.path() + "/db/009999.sst"));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Must(engine_->Get("key" + std::to_string(i))).has_value()) << i;
}

TEST_F(NoSpace, WhatIsNeededCoversWhatIsWritten) {
  Open();
  EXPECT_LT(engine_->GetDiskUse().needed_bytes, 256u << 10);
  for (int i = 0; i < 9; ++i) MustSucceed(Write("key" + std::to_string(i), 100'000));
  EXPECT_GE(engine_->GetDiskUse().needed_bytes, 900'000u);  // the log becomes a table
}

// Who writes only where the rest of the disk covers what is needed can open after a crash, and delete everything.
TEST_F(NoSpace, WhoHeedsWhatIsNeededCanAlwaysDelete) {
  Open();
  std::mt19937_64 random(TestSeed());
  auto room = [&] { return fs::space(directory_.path()).available; };
  const uint64_t room_at_first = room();
  int count = 0;
  for (; room() > engine_->GetDiskUse().needed_bytes + 2 * 10'000 + (3 << 20); ++count) {
    std::string value(10'000, '\0');
    for (char& byte : value) byte = static_cast<char>(random());
    MustSucceed(engine_->Write({EngineWrite{"key" + std::to_string(random()), value}}, SyncedIf(count % 20 == 0)));
  }
  printf("%d entries fitted, %lld KiB left\n", count, static_cast<long long>(room() >> 10));
  EXPECT_GT(count, 500);
  engine_.reset();
  Open();
  std::vector<EngineWrite> deletions;
  MustSucceed(engine_->Scan("", "", nullptr, [&](std::string_view key, std::string_view) {
    deletions.push_back({std::string(key), std::nullopt});
    return true;
  }));
  EXPECT_EQ(deletions.size(), static_cast<size_t>(count));
  MustSucceed(engine_->Write(deletions, WriteMode::kSynced));
  // The room comes back though nobody writes.
  const auto deadline = Clock::Now() + std::chrono::minutes(1);
  while (room() < room_at_first - (4 << 20)) {
    ASSERT_LT(Clock::Now(), deadline) << (room() >> 10) << " KiB free";
    engine_->Tidy();
    Clock::SleepFor(std::chrono::milliseconds(100));
  }
}

// RocksDB then writes no table any more until it is opened again.
TEST_F(NoSpace, AFlushThatFoundNoRoomIsMadeUpForThoughNobodyWrites) {
  Open();
  for (int i = 0; i < 8; ++i) MustSucceed(Write("key" + std::to_string(i), 100'000));
  std::vector<EngineWrite> deletions;
  for (int i = 0; i < 200; ++i) deletions.push_back({"gone" + std::to_string(i), std::nullopt});
  MustSucceed(engine_->Write(deletions, WriteMode::kSynced));
  auto has_table = [&] {
    const fs::directory_iterator files(directory_.path() + "/db");
    return std::any_of(begin(files), end(files),
                       [](const auto& file) { return file.path().extension() == ".sst" && file.file_size() > 0; });
  };
  Fill();
  engine_->Tidy();
  Clock::SleepFor(std::chrono::milliseconds(500));  // for it to fail in
  EXPECT_FALSE(has_table());
  MakeRoom();
  const auto deadline = Clock::Now() + std::chrono::minutes(1);
  while (!has_table()) {
    ASSERT_LT(Clock::Now(), deadline);
    engine_->Tidy();
    Clock::SleepFor(std::chrono::milliseconds(10));
  }
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(Must(engine_->Get("key" + std::to_string(i))).has_value()) << i;
}

TEST_F(NoSpace, ReadingNeedsNoRoom) {
  Open();
  MustSucceed(Write("a"));
  engine_.reset();
  Fill();
  RocksOptions options = Options();
  options.read_only = true;
  engine_ = Must(OpenRocksEngine(options));
  EXPECT_TRUE(Must(engine_->Get("a")).has_value());
  EXPECT_EQ(Write("b").error().code, ErrorCode::kPermission);
}

// The room may go after it was looked at. RocksDB must then fail, and not end the process.
TEST_F(NoSpace, TheRoomGoesWhileItIsOpened) {
  Open();
  MustSucceed(Write("a"));
  engine_.reset();
  const RocksOptions options = Options();
  int failed = 0;
  for (uint64_t room = 0; room <= 256 << 10; room += 4 << 10) {
    LeavePages(room);
    rocksdb::DB* raw = nullptr;
    rocksdb::Status status = rocksdb::DB::Open(MakeRocksOptions(options), options.path, &raw);
    std::unique_ptr<rocksdb::DB> db(raw);
    failed += status.ok() ? 0 : 1;
    if (!status.ok()) {
      EXPECT_EQ(ToError(status, options.path).code, ErrorCode::kNoSpace) << status.ToString();
    }
    db.reset();
    MakeRoom();
  }
  EXPECT_GT(failed, 0);
  Open();
  EXPECT_TRUE(Must(engine_->Get("a")).has_value());
}

// RocksDB takes it for a failure that only a new opening ends.
TEST_F(NoSpace, ALackOfDescriptorsPasses) {
  Open();
  constexpr const char* kWords = "Too many open files";
  int count = 0;  // of what was written
  const auto write_until_refused = [&] {
    for (int tries = 0; tries < 600; ++tries) {
      const Status status = Write("key" + std::to_string(count), 4000);
      if (!status.ok()) return status.error().message;
      ++count;
    }
    return std::string();
  };
  for (unsigned left : {0, 1, 3}) {
    {
      FewDescriptors few(left);
      write_until_refused();
    }
    ASSERT_TRUE(Write("again").ok()) << left;
  }
  {
    // It is closed, and cannot be opened again.
    DescriptorLimit none(4);
    EXPECT_NE(write_until_refused().find(kWords), std::string::npos);
    EXPECT_NE(write_until_refused().find(kWords), std::string::npos);
    EXPECT_EQ(Write("refused").error().code, ErrorCode::kNoSpace);
    EXPECT_FALSE(engine_->Get("again").ok());
  }
  ASSERT_TRUE(Write("at last").ok());
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(Must(engine_->Get("at last")).has_value());
    for (int i = 0; i < count; ++i) EXPECT_TRUE(Must(engine_->Get("key" + std::to_string(i))).has_value()) << i;
    engine_.reset();
    Open();
  }
}

TEST_F(NoSpace, ClosingOnAFullDisk) {
  Open();
  Fill();
  const int count = WriteUntilFull();
  engine_.reset();
  MakeRoom();
  Open();
  for (int i = 0; i < count; ++i) EXPECT_TRUE(Must(engine_->Get("fill" + std::to_string(i))).has_value()) << i;
}

// The room comes and goes at random while tables are written and merged in the background. What was acknowledged is
// there, what was refused is there whole or not at all.
TEST_F(NoSpace, RandomlyFullAndRoomyAgain) {
  std::mt19937_64 random(TestSeed());
  std::map<std::string, std::string> expected;
  int accepted = 0, refused = 0;
  Open();
  for (int step = 0; step < 1500; ++step) {
    if (random() % 100 == 0) {
      if (fs::exists(directory_.path() + "/ballast")) {
        MakeRoom();
      } else {
        Leave(random() % 2 == 0 ? 0 : random() % (3 << 20));
      }
    }
    std::string key = "key" + std::to_string(random() % 100);
    std::string value = std::to_string(step) + std::string(random() % 20'000, 'v');
    Status status = engine_->Write({EngineWrite{key, value}}, SyncedIf(random() % 3 == 0));
    std::string found = Must(engine_->Get(key)).value_or("");
    if (status.ok()) {
      ++accepted;
      ASSERT_EQ(found, value) << "step " << step;
    } else {
      ++refused;
      ASSERT_EQ(status.error().code, ErrorCode::kNoSpace) << status.error().message;
      ASSERT_TRUE(found == value || found == expected[key]) << "step " << step;
    }
    expected[key] = found;
  }
  printf("%d writes accepted, %d refused\n", accepted, refused);
  EXPECT_GT(accepted, 0);
  MakeRoom();
  engine_.reset();
  Open();
  for (const auto& [key, value] : expected) EXPECT_EQ(Must(engine_->Get(key)).value_or(""), value);
}

}  // namespace
}  // namespace cairnfs::kv
