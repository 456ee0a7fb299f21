// What a database says that found no descriptor, until it is opened again. In real time: the virtual one needs some.
#include "../../support/few_descriptors.h"
#include "support.h"

namespace cairnfs::kv {
namespace {

// While somebody reads, the database cannot be opened again. Who writes is told what is missing, and that is no room.
TEST(NoDescriptors, AreCalledSoUntilTheDatabaseIsOpenedAgain) {
  const TemporaryDirectory directory;
  RocksOptions options;
  options.path = directory.path() + "/db";
  options.write_buffer_bytes = 1 << 20;  // so that it soon needs a new log
  const auto engine = Must(OpenRocksEngine(options));
  const auto write = [&](const std::string& key) {
    return engine->Write({EngineWrite{key, std::string(4000, 'v')}}, WriteMode::kSynced);
  };
  const auto expect_refusal = [&] {
    Status status;
    for (int tries = 0; tries < 600 && status.ok(); ++tries) status = write("key" + std::to_string(tries));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kNoSpace);
    EXPECT_NE(status.error().message.find("Too many open files"), std::string::npos) << status.error().message;
    EXPECT_NE(status.error().message.find("LimitNOFILE"), std::string::npos) << status.error().message;
  };
  auto reader = engine->GetSnapshot();
  {
    const FewDescriptors none(0);
    expect_refusal();
  }
  for (int tries = 0; tries < 2; ++tries) expect_refusal();  // it is not opened again yet
  reader.reset();
  EXPECT_TRUE(write("again").ok());
}

}  // namespace
}  // namespace cairnfs::kv
