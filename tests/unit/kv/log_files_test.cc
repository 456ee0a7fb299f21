// The logs of RocksDB: what a reader gets of a log whose pages are missing, cut off or of another file.
#include "kv/log_files.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>

#include <fstream>
#include <map>

#include "base/coding.h"
#include "kv/rocks_support.h"
#include "support.h"

namespace cairnfs::kv {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPage = 4096;

void WriteBytes(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// Appends of different sizes, so that records begin anywhere in a page.
std::vector<std::string> Appends(std::mt19937_64& random, int count) {
  std::vector<std::string> appends;
  for (int i = 0; i < count; ++i) {
    std::string append(1 + random() % 9000, '\0');
    for (char& byte : append) byte = static_cast<char>(random());
    appends.push_back(append);
  }
  return appends;
}

std::unique_ptr<rocksdb::WritableFile> NewLog(const std::string& path) {
  std::unique_ptr<rocksdb::WritableFile> file;
  EXPECT_TRUE(LogEnv()->NewWritableFile(path, &file, rocksdb::EnvOptions()).ok());
  return file;
}

enum class Ended { kOpen, kClosed };
void WriteLog(const std::string& path, const std::vector<std::string>& appends, Ended ended) {
  std::unique_ptr<rocksdb::WritableFile> file = NewLog(path);
  for (const std::string& append : appends) {
    ASSERT_TRUE(file->Append(append).ok());
    ASSERT_TRUE(file->Sync().ok());
  }
  if (ended == Ended::kOpen) return;
  ASSERT_TRUE(file->Close().ok());
}

struct Found {
  std::string bytes;
  bool is_damaged = false;
};
// Reads as RocksDB does: blocks of 32 KiB until one is short.
Found ReadLog(const std::string& path) {
  std::unique_ptr<rocksdb::SequentialFile> file;
  EXPECT_TRUE(LogEnv()->NewSequentialFile(path, &file, rocksdb::EnvOptions()).ok());
  Found found;
  std::string scratch(32 << 10, '\0');
  for (;;) {
    rocksdb::Slice read;
    const rocksdb::Status status = file->Read(scratch.size(), &read, scratch.data());
    if (!status.ok()) {
      EXPECT_TRUE(status.IsCorruption()) << status.ToString();
      found.is_damaged = true;
      return found;
    }
    found.bytes.append(read.data(), read.size());
    if (read.size() < scratch.size()) return found;
  }
}

std::string Joined(const std::vector<std::string>& appends, size_t count) {
  std::string joined;
  for (size_t i = 0; i < count; ++i) joined += appends[i];
  return joined;
}

// How many appends of `appends` `bytes` are; nullopt when they are no prefix of them.
std::optional<size_t> PrefixOf(const std::vector<std::string>& appends, std::string_view bytes) {
  for (size_t i = 0; i < appends.size(); ++i) {
    if (bytes.empty()) return i;
    if (!bytes.starts_with(appends[i])) return std::nullopt;
    bytes.remove_prefix(appends[i].size());
  }
  return bytes.empty() ? std::optional(appends.size()) : std::nullopt;
}

class LogFiles : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  const std::string log_ = directory_.path() + "/000007.log";
  std::mt19937_64 random_{TestSeed()};
};

TEST_F(LogFiles, WhatWasAppendedIsRead) {
  for (Ended ended : {Ended::kOpen, Ended::kClosed}) {
    const std::vector<std::string> appends = Appends(random_, 100);
    WriteLog(log_, appends, ended);
    const Found found = ReadLog(log_);
    EXPECT_EQ(found.bytes, Joined(appends, appends.size()));
    EXPECT_FALSE(found.is_damaged);
    std::unique_ptr<rocksdb::SequentialFile> file;
    ASSERT_TRUE(LogEnv()->NewSequentialFile(log_, &file, rocksdb::EnvOptions()).ok());
    ASSERT_TRUE(file->Skip(found.bytes.size() - 10).ok());
    char scratch[20];
    rocksdb::Slice read;
    ASSERT_TRUE(file->Read(sizeof scratch, &read, scratch).ok());
    EXPECT_EQ(read.ToString(), found.bytes.substr(found.bytes.size() - 10));
  }
}

TEST_F(LogFiles, MostSyncsFindTheirPlaceInTheFile) {
  std::unique_ptr<rocksdb::WritableFile> file = NewLog(log_);
  int grew = 0;
  uintmax_t size = 0;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(file->Append(std::string(1000, 'x')).ok());
    ASSERT_TRUE(file->Sync().ok());
    grew += fs::file_size(log_) != size ? 1 : 0;
    size = fs::file_size(log_);
  }
  EXPECT_LE(grew, 20);
  EXPECT_EQ(file->GetFileSize(), 1'000'000u);
}

// A power cut keeps any of the pages that were not synced: the rest reads as zeros, or as what was there before.
TEST_F(LogFiles, PagesThatAPowerCutLostEndTheLogThere) {
  const std::vector<std::string> appends = Appends(random_, 60);
  WriteLog(log_, appends, Ended::kOpen);
  const std::string whole = Bytes(log_);
  for (int round = 0; round < 300; ++round) {
    std::string bytes = whole;
    const size_t first_lost = random_() % (bytes.size() / kPage) * kPage;
    for (size_t page = first_lost; page + kPage <= bytes.size(); page += kPage) {
      if (page == first_lost || random_() % 3 == 0)
        std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(page), kPage, '\0');
    }
    if (random_() % 4 == 0) bytes.resize(first_lost + random_() % kPage);
    WriteBytes(log_, bytes);
    const Found found = ReadLog(log_);
    const std::optional<size_t> count = PrefixOf(appends, found.bytes);
    ASSERT_TRUE(count) << "lost from byte " << first_lost;
    const std::string kept = Joined(appends, *count);
    EXPECT_LE(kept.size(), first_lost);
    // Nothing before the first lost page is lost with it, but for the record that reaches into it.
    const size_t next = *count < appends.size() ? appends[*count].size() : whole.size();
    EXPECT_GT(kept.size() + next + 8 + 20 * (*count + 1), first_lost);
  }
}

TEST_F(LogFiles, FlippedBytesEndTheLogThere) {
  const std::vector<std::string> appends = Appends(random_, 20);
  WriteLog(log_, appends, Ended::kClosed);
  const std::string whole = Bytes(log_);
  for (int round = 0; round < 500; ++round) {
    std::string bytes = whole;
    bytes[8 + random_() % (bytes.size() - 8)] ^= static_cast<char>(1 << random_() % 8);
    WriteBytes(log_, bytes);
    EXPECT_TRUE(PrefixOf(appends, ReadLog(log_).bytes));
  }
}

// RocksDB would go on with the next log as if nothing were missing.
TEST_F(LogFiles, ALogThatEndsTooSoonIsDamagedWhereALaterOneFollows) {
  const std::vector<std::string> appends = Appends(random_, 20);
  const std::string later = directory_.path() + "/000009.log";
  WriteLog(later, appends, Ended::kOpen);
  WriteLog(log_, appends, Ended::kClosed);
  EXPECT_FALSE(ReadLog(log_).is_damaged);
  EXPECT_FALSE(ReadLog(later).is_damaged);
  WriteBytes(log_, Bytes(log_).substr(0, Joined(appends, 10).size()));  // behind the records there are zeros
  Found found = ReadLog(log_);
  EXPECT_TRUE(found.is_damaged);
  EXPECT_TRUE(found.bytes.starts_with(appends[0]));
  WriteLog(log_, appends, Ended::kOpen);
  EXPECT_TRUE(ReadLog(log_).is_damaged);
  fs::resize_file(later, 0);
  EXPECT_FALSE(ReadLog(log_).is_damaged);
}

TEST_F(LogFiles, LogsAndOtherFilesOfRocksDbAreReadAsTheyAre) {
  WriteBytes(log_, "a log that RocksDB wrote by itself");
  EXPECT_EQ(ReadLog(log_).bytes, "a log that RocksDB wrote by itself");
  const std::string table = directory_.path() + "/000008.sst";
  std::unique_ptr<rocksdb::WritableFile> file = NewLog(table);
  ASSERT_TRUE(file->Append("table").ok());
  ASSERT_TRUE(file->Close().ok());
  EXPECT_EQ(Bytes(table), "table");
}

// Writes behind the last sync, of which a power cut keeps some pages of some logs.
TEST_F(LogFiles, ADatabaseOfWhichPagesAreMissingHasAPrefixOfItsWrites) {
  const std::string original = directory_.path() + "/original", copy = directory_.path() + "/copy";
  fs::create_directory(original);
  RocksOptions options;
  options.path = original;
  options.write_buffer_bytes = 1 << 20;
  rocksdb::DB* raw = nullptr;
  ASSERT_TRUE(rocksdb::DB::Open(MakeRocksOptions(options), original, &raw).ok());
  const std::unique_ptr<rocksdb::DB> db(raw);
  ASSERT_TRUE(db->PauseBackgroundWork().ok());  // no log goes
  int count = 0;
  const auto write = [&](bool is_synced) {
    rocksdb::WriteOptions how;
    how.sync = is_synced;
    ASSERT_TRUE(db->Put(how, Counted(count++), std::string(1 + random_() % 6000, 'v')).ok());
  };
  for (int i = 0; i < 50; ++i) write(true);
  const int synced = count;
  for (int i = 0; i < 500; ++i) write(false);  // of more than one log
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(original)) files[entry.path().filename()] = Bytes(entry.path());
  ASSERT_TRUE(db->ContinueBackgroundWork().ok());
  std::vector<std::string> logs;
  for (const auto& [name, bytes] : files) {
    if (name.ends_with(".log") && !bytes.empty()) logs.push_back(name);
  }
  ASSERT_GE(logs.size(), 2u);
  constexpr int kRounds = 25;
  for (int round = 0; round <= kRounds; ++round) {
    fs::remove_all(copy);
    fs::create_directory(copy);
    for (const auto& [name, whole] : files) {
      std::string bytes = whole;
      // The first log begins with what was synced. In the last round nothing is missing.
      const size_t begin = name == logs[0] ? (size_t{50} * 6200 / kPage + 1) * kPage : 0;
      const bool loses = name.ends_with(".log") && round < kRounds;
      for (size_t page = begin; loses && page < bytes.size(); page += kPage) {
        const size_t size = std::min(kPage, bytes.size() - page);
        if (random_() % 40 == 0) std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(page), size, '\0');
      }
      WriteBytes(copy + "/" + name, bytes);
    }
    const int found = PrefixLength(*MustOpenRocks(copy));
    EXPECT_GE(found, synced);
    EXPECT_TRUE(round < kRounds || found == count);
  }
}

}  // namespace
}  // namespace cairnfs::kv
