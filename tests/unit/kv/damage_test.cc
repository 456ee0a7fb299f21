// Damaged RocksDB directories: each file removed, cut at many lengths, and flipped at many places. Whatever is done,
// the engine either gives the right data or an error that says what is wrong: never wrong data, never a crash.
//
// Each case runs in a child process, so that a crash is a result. The parent never uses RocksDB (its threads would not
// survive a fork). CAIRNFS_EXHAUSTIVE=1 tries every byte.
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "../../support/sanitizers.h"
#include "support.h"

namespace cairnfs::kv {
namespace {

namespace fs = std::filesystem;

enum Outcome { kRightData = 0, kClearError = 1, kWrongData = 2, kOtherError = 3, kCrash = 4 };

std::map<std::string, std::string> ExpectedData() {
  std::map<std::string, std::string> data;
  for (int i = 0; i < 120; ++i)
    data["key" + std::to_string(1000 + i)] = std::string(20 + i % 7, static_cast<char>('a' + i % 26));
  return data;
}

// Part of the data in a table file, the rest in the log, which is not closed: the process ends.
void MakeDatabase(const std::string& path) {
  std::unique_ptr<KvEngine> engine = MustOpenRocks(path);
  int count = 0;
  for (const auto& [key, value] : ExpectedData()) {
    if (++count == 60) {
      engine.reset();
      engine = MustOpenRocks(path);  // opening writes what the log held into a table
    }
    MustSucceed(engine->Write({EngineWrite{key, value}}, WriteMode::kSynced));
  }
  static_cast<void>(engine.release());
}

int RunInChild(const std::function<int()>& body) {
  fflush(nullptr);
  pid_t child = fork();
  if (child == 0) {
    int result = body();
    fflush(nullptr);
    _exit(result);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : kCrash;
}

bool IsClear(const Error& error, const std::string& path) {
  return error.code == ErrorCode::kCorrupt && error.message.find(path) != std::string::npos &&
         error.message.find("restore the data directory from a copy") != std::string::npos;
}

Outcome Judge(const Error& error, const std::string& path) {
  if (IsClear(error, path)) return kClearError;
  printf("unclear error: %s: %s\n", std::string(ErrorCodeName(error.code)).c_str(), error.message.c_str());
  return kOtherError;
}

Outcome TryToRead(const std::string& path) {
  RocksOptions options;
  options.path = path;
  options.block_cache_bytes = 1 << 20;
  Result<std::unique_ptr<KvEngine>> engine = OpenRocksEngine(options);
  if (!engine.ok()) return Judge(engine.error(), path);
  const std::map<std::string, std::string> expected = ExpectedData();
  for (const auto& [key, value] : expected) {
    Result<std::optional<std::string>> found = (*engine)->Get(key);
    if (!found.ok()) return Judge(found.error(), path);
    if (*found != value) return kWrongData;
  }
  std::map<std::string, std::string> scanned;
  Status status = (*engine)->Scan("", "", nullptr, [&](std::string_view key, std::string_view value) {
    scanned.emplace(key, value);
    return true;
  });
  if (!status.ok()) return Judge(status.error(), path);
  if (scanned != expected) return kWrongData;
  status = (*engine)->Write({EngineWrite{"new", "value"}}, WriteMode::kSynced);
  return status.ok() ? kRightData : Judge(status.error(), path);
}

class Damage : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(RunInChild([&] {
                MakeDatabase(original_);
                return testing::Test::HasFailure() ? 1 : 0;
              }),
              0);
    ASSERT_EQ(RunInChild([&] { return TryToRead(Copy()); }), kRightData);
    for (const auto& entry : fs::directory_iterator(original_)) names_.push_back(entry.path().filename());
    std::sort(names_.begin(), names_.end());
    ASSERT_GE(names_.size(), 7u);
  }

  std::string Copy() {
    fs::remove_all(copy_);
    fs::copy(original_, copy_);
    return copy_;
  }

  // Counts the outcome of reading a copy that `damage` (given the file's path) was done to.
  void Case(const std::string& name, const std::string& what, const std::function<void(const fs::path&)>& damage) {
    Copy();
    damage(fs::path(copy_) / name);
    int outcome = RunInChild([&] { return TryToRead(copy_); });
    ++outcomes_[name][outcome];
    EXPECT_TRUE(outcome == kRightData || outcome == kClearError)
        << name << " " << what << ": outcome " << outcome << " (2 wrong data, 3 unclear error, 4 crash)";
  }

  size_t SizeOf(const std::string& name) {
    const fs::path file = fs::path(original_) / name;
    return name.ends_with(".log") ? LogEnd(file) : fs::file_size(file);
  }
  // About `count` positions in the file, fewer in files that hold no data.
  std::vector<size_t> Positions(const std::string& name, size_t count) {
    size_t size = SizeOf(name);
    bool all = getenv("CAIRNFS_EXHAUSTIVE") != nullptr;
    bool holds_data = name.ends_with(".log") || name.ends_with(".sst") || name.starts_with("MANIFEST");
    if (!holds_data) count = count / 4;
    // Processes are slow to start there, and threads are not what is tried.
    count = std::max<size_t>(1, count / (kThreadSanitizer ? 8 : kSlowdown));
    size_t stride = all ? 1 : std::max<size_t>(1, size / count);
    std::vector<size_t> positions;
    for (size_t position = 0; position < size; position += stride) positions.push_back(position);
    return positions;
  }
  void TearDown() override {
    for (const auto& [name, counts] : outcomes_) {
      printf("%-28s", name.c_str());
      for (const auto& [outcome, count] : counts) {
        printf(" %s %d", outcome == kRightData ? "right data" : outcome == kClearError ? "clear error" : "BAD", count);
      }
      printf("\n");
    }
  }

  TemporaryDirectory directory_;
  const std::string original_ = directory_.path() + "/original";
  const std::string copy_ = directory_.path() + "/copy";
  std::vector<std::string> names_;
  std::map<std::string, std::map<int, int>> outcomes_;
};

TEST_F(Damage, RemovedFiles) {
  for (const std::string& name : names_) {
    Case(name, "removed", [](const fs::path& file) { fs::remove(file); });
  }
  for (const std::string& name : names_) {
    if (name.ends_with(".log") || name.ends_with(".sst") || name.starts_with("MANIFEST") || name == "CURRENT") {
      EXPECT_EQ(outcomes_[name][kClearError], 1) << name;
    } else {
      EXPECT_EQ(outcomes_[name][kRightData], 1) << name;
    }
  }
}

TEST_F(Damage, TruncatedFiles) {
  for (const std::string& name : names_) {
    for (size_t size : Positions(name, 24)) {
      Case(name, "cut to " + std::to_string(size), [&](const fs::path& file) { fs::resize_file(file, size); });
    }
    if (SizeOf(name) > 0 && (name.ends_with(".log") || name.ends_with(".sst") || name.starts_with("MANIFEST"))) {
      EXPECT_EQ(outcomes_[name][kRightData], 0) << name << ": every byte of it had been synced";
    }
  }
}

TEST_F(Damage, FlippedBytes) {
  for (const std::string& name : names_) {
    for (size_t position : Positions(name, 40)) {
      for (int mask : {0x01, 0x80}) {
        Case(name, "flipped " + std::to_string(mask) + " at " + std::to_string(position), [&](const fs::path& file) {
          std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
          stream.seekg(static_cast<std::streamoff>(position));
          int byte = stream.get();
          stream.seekp(static_cast<std::streamoff>(position));
          stream.put(static_cast<char>(byte ^ mask));
        });
      }
    }
  }
}

// Bytes behind the last sync are not damage: a power cut leaves the like, and opening drops them silently.
TEST_F(Damage, TornTailBehindTheLastSyncIsDropped) {
  for (const std::string& tail : {std::string(5000, '\0'), std::string(3, 'x'), std::string(40'000, '\xee')}) {
    for (const std::string& name : names_) {
      if (!name.ends_with(".log")) continue;
      Case(name, "torn tail of " + std::to_string(tail.size()), [&](const fs::path& file) {
        fs::resize_file(file, LogEnd(file));
        std::ofstream(file, std::ios::app | std::ios::binary) << tail;
      });
      EXPECT_EQ(outcomes_[name][kClearError], 0);
    }
  }
}

TEST_F(Damage, VerifyFindsFlippedTables) {
  for (const std::string& name : names_) {
    if (!name.ends_with(".sst")) continue;
    for (size_t position : Positions(name, 40)) {
      Copy();
      std::fstream stream(fs::path(copy_) / name, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(static_cast<std::streamoff>(position));
      int byte = stream.get();
      stream.seekp(static_cast<std::streamoff>(position));
      stream.put(static_cast<char>(byte ^ 0x10));
      stream.close();
      int outcome = RunInChild([&] {
        Status status = VerifyRocksChecksums(copy_);
        return status.ok() ? kRightData : Judge(status.error(), copy_);
      });
      EXPECT_EQ(outcome, kClearError) << name << " at " << position;
    }
  }
}

std::vector<std::string> TablesIn(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".sst") names.push_back(entry.path().filename());
  }
  return names;
}

void FlipBit(const fs::path& file, size_t position) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(position));
  const int byte = stream.get();
  stream.seekp(static_cast<std::streamoff>(position));
  stream.put(static_cast<char>(byte ^ 0x10));
}

void ExpectDamaged(KvEngine& engine, const std::string& what, const std::string& path) {
  const Status found = engine.Verify({});
  ASSERT_FALSE(found.ok()) << what;
  EXPECT_EQ(found.error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(IsClear(found.error(), path)) << found.error().message;
  EXPECT_NE(found.error().message.find(what), std::string::npos) << found.error().message;
}

// All of its data has been read, and is served from memory from then on.
void VerifyWhatIsDamagedWhileOpen(const std::string& path) {
  const std::unique_ptr<KvEngine> engine = MustOpenRocks(path);
  for (const auto& [key, value] : ExpectedData()) EXPECT_EQ(*Must(engine->Get(key)), value);
  MustSucceed(engine->Verify({}));
  const std::vector<std::string> tables = TablesIn(path);
  ASSERT_FALSE(tables.empty());
  for (const std::string& table : tables) {
    const fs::path file = fs::path(path) / table;
    const size_t size = fs::file_size(file);
    for (size_t position = 0; position < size; position += std::max<size_t>(1, size / 20)) {
      FlipBit(file, position);
      ExpectDamaged(*engine, table + " fails its checksum", path);
      FlipBit(file, position);
    }
    fs::rename(file, path + "/away");
    ExpectDamaged(*engine, table + " is missing", path);
    fs::rename(path + "/away", file);
  }
  MustSucceed(engine->Verify({}));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(engine->Verify(Context(stop.get_token())).error().code, ErrorCode::kInterrupted);
}

TEST_F(Damage, VerifyFindsWhatBecomesDamagedWhileTheDatabaseIsOpen) {
  Copy();
  const int outcome = RunInChild([&] {
    VerifyWhatIsDamagedWhileOpen(copy_);
    return testing::Test::HasFailure() ? kOtherError : kRightData;
  });
  EXPECT_EQ(outcome, kRightData);
}

}  // namespace
}  // namespace cairnfs::kv
