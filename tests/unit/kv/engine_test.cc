// The RocksDB engine: who may open it, and what it does besides conformance.

#include <sys/stat.h>

#include <fstream>
#include <map>

#include "support.h"

namespace cairnfs::kv {
namespace {

namespace fs = std::filesystem;

RocksOptions OptionsFor(const std::string& path) {
  RocksOptions options;
  options.path = path;
  options.block_cache_bytes = 1 << 20;
  return options;
}

ErrorCode OpenError(const RocksOptions& options, const std::string& message_part) {
  Result<std::unique_ptr<KvEngine>> engine = OpenRocksEngine(options);
  EXPECT_FALSE(engine.ok());
  if (engine.ok()) return ErrorCode::kIo;
  EXPECT_NE(engine.error().message.find(message_part), std::string::npos) << engine.error().message;
  EXPECT_NE(engine.error().message.find(options.path), std::string::npos) << engine.error().message;
  return engine.error().code;
}

TEST(RocksOpen, MissingDirectory) {
  TemporaryDirectory directory;
  RocksOptions options = OptionsFor(directory.path() + "/none");
  options.create_if_missing = false;
  EXPECT_EQ(OpenError(options, "no database"), ErrorCode::kNotFound);
  options.read_only = true;
  EXPECT_EQ(OpenError(options, "no database"), ErrorCode::kNotFound);
  EXPECT_EQ(VerifyRocksChecksums(options.path).error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(fs::exists(options.path));
}

TEST(RocksOpen, PathIsAFile) {
  TemporaryDirectory directory;
  std::ofstream(directory.path() + "/file") << "x";
  Result<std::unique_ptr<KvEngine>> engine = OpenRocksEngine(OptionsFor(directory.path() + "/file"));
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.error().message.find("/file"), std::string::npos) << engine.error().message;
}

TEST(RocksOpen, SecondOpenerIsTold) {
  TemporaryDirectory directory;
  std::unique_ptr<KvEngine> engine = MustOpenRocks(directory.path());
  EXPECT_EQ(OpenError(OptionsFor(directory.path()), "in use"), ErrorCode::kBusy);
  RocksOptions read_only = OptionsFor(directory.path());
  read_only.read_only = true;
  EXPECT_EQ(OpenError(read_only, "in use"), ErrorCode::kBusy);
  EXPECT_EQ(VerifyRocksChecksums(directory.path()).error().code, ErrorCode::kBusy);
  engine.reset();
  MustOpenRocks(directory.path());
}

TEST(RocksOpen, ReadOnlyReadsAndChangesNothing) {
  TemporaryDirectory directory;
  MustSucceed(MustOpenRocks(directory.path())->Write({EngineWrite{"a", "1"}}, WriteMode::kSynced));
  auto listing = [&] {
    std::map<std::string, uintmax_t> sizes;
    for (const auto& entry : fs::directory_iterator(directory.path())) {
      sizes[entry.path().filename()] = entry.file_size();
    }
    return sizes;
  };
  std::map<std::string, uintmax_t> before = listing();
  RocksOptions options = OptionsFor(directory.path());
  options.read_only = true;
  std::unique_ptr<KvEngine> engine = Must(OpenRocksEngine(options));
  EXPECT_EQ(Must(engine->Get("a")), "1");
  EXPECT_EQ(engine->Write({EngineWrite{"a", "2"}}, WriteMode::kSynced).error().code, ErrorCode::kPermission);
  EXPECT_EQ(OpenError(OptionsFor(directory.path()), "in use"), ErrorCode::kBusy);
  engine.reset();
  MustSucceed(VerifyRocksChecksums(directory.path()));
  EXPECT_EQ(listing(), before);
}

// Names and attributes lie in it, whose directories others may not enter. Any program may open it, with any umask.
TEST(RocksOpen, NobodyElseMayEnter) {
  const mode_t before = umask(022);
  TemporaryDirectory directory;
  const RocksOptions options = OptionsFor(directory.path() + "/db");
  const auto mode = [&] {
    struct stat info {};
    EXPECT_EQ(stat(options.path.c_str(), &info), 0);
    return info.st_mode & 07777;
  };
  ASSERT_TRUE(OpenRocksEngine(options).ok());
  EXPECT_EQ(mode(), 0700U);
  ASSERT_EQ(chmod(options.path.c_str(), 0755), 0);
  ASSERT_TRUE(OpenRocksEngine(options).ok());
  EXPECT_EQ(mode(), 0700U) << "as an earlier version has made it";
  umask(before);
}

TEST(RocksOpen, HalfMadeDatabaseIsMadeAnew) {
  TemporaryDirectory directory;
  std::ofstream(directory.path() + "/MANIFEST-000001") << "half";
  std::ofstream(directory.path() + "/000004.log");
  MustSucceed(MustOpenRocks(directory.path())->Write({EngineWrite{"a", "1"}}, WriteMode::kSynced));
  EXPECT_EQ(Must(MustOpenRocks(directory.path())->Get("a")), "1");
}

TEST(RocksEngine, ScanStopsAndHasBounds) {
  TemporaryDirectory directory;
  std::unique_ptr<KvEngine> engine = MustOpenRocks(directory.path());
  std::vector<EngineWrite> writes;
  for (int i = 0; i < 100; ++i) writes.push_back(EngineWrite{Counted(i), "v"});
  MustSucceed(engine->Write(writes, WriteMode::kUnsynced));
  auto count = [&](const std::string& begin, const std::string& end, int stop_after) {
    int visited = 0;
    MustSucceed(
        engine->Scan(begin, end, nullptr, [&](std::string_view, std::string_view) { return ++visited != stop_after; }));
    return visited;
  };
  EXPECT_EQ(count("", "", 0), 100);
  EXPECT_EQ(count("", "", 7), 7);
  EXPECT_EQ(count(Counted(10), Counted(20), 0), 10);
  EXPECT_EQ(count(Counted(20), Counted(10), 0), 0);
  EXPECT_EQ(count(Counted(20), Counted(20), 0), 0);
  EXPECT_EQ(count(Counted(90), "", 0), 10);
  MustSucceed(engine->Write({}, WriteMode::kSynced));
}

}  // namespace
}  // namespace cairnfs::kv
