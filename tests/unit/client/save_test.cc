// What a save writes, and what it takes from the save before.
#include <fcntl.h>
#include <sys/stat.h>

#include "save_world.h"

namespace cairnfs::client {
namespace {

class SaveTest : public SaveWorld {
 protected:
  // One tensor of each kind of memory, blocks of several lengths.
  std::vector<TestTensor> State() {
    return {NewTensor("a", CAIRNFS_HOST, 3 * kBlock + 17), NewTensor("b", 0, 2 * kBlock), NewTensor("c", 1, kBlock + 1),
            NewTensor("d", CAIRNFS_HOST, 5), NewTensor("e", 0, 1)};
  }
  static uint64_t Bytes(const std::vector<TestTensor>& tensors) {
    uint64_t bytes = 0;
    for (const auto& tensor : tensors) bytes += tensor.bytes;
    return bytes;
  }
};

TEST_F(SaveTest, WritesWhatWasGiven) {
  auto saver = OpenSaver();
  const auto state = State();
  const auto result = SaveRight(*saver, state, Path("one"), nullptr);
  EXPECT_EQ(result.base_use, static_cast<uint32_t>(CAIRNFS_BASE_NOT_ASKED));
  EXPECT_EQ(result.bytes_reused, 0U);
  EXPECT_EQ(result.blocks, 10U);
  EXPECT_EQ(result.blocks_changed, 10U);
  EXPECT_EQ(Names(), std::vector<std::string>{"one"});
}

TEST_F(SaveTest, TakesFromTheBaseWhatDidNotChange) {
  auto saver = OpenSaver();
  auto state = State();
  SaveRight(*saver, state, Path("one"), nullptr);
  const uint64_t to_host_before = devices_.devices[0].bytes_to_host;
  auto result = SaveRight(*saver, state, Path("two"), Path("one").c_str());
  EXPECT_EQ(result.base_use, static_cast<uint32_t>(CAIRNFS_BASE_USED)) << result.base_text;
  EXPECT_EQ(result.bytes_reused, Bytes(state));
  EXPECT_EQ(result.blocks_changed, 0U);
  EXPECT_LE(devices_.devices[0].bytes_to_host - to_host_before, 4U);  // bits
  Fill(state[0], kBlock + 1, kBlock + 2);
  Fill(state[1], 0, 1);
  result = SaveRight(*saver, state, Path("three"), Path("two").c_str());
  EXPECT_EQ(result.blocks_changed, 2U);
  EXPECT_EQ(result.bytes_reused, Bytes(state) - 2 * kBlock);
}

TEST_F(SaveTest, OverTheBaseItself) {
  auto saver = OpenSaver();
  auto state = State();
  SaveRight(*saver, state, Path("one"), nullptr);
  Fill(state[0], 0, 1);
  const auto result = SaveRight(*saver, state, Path("one"), Path("one").c_str());
  EXPECT_EQ(result.blocks_changed, 1U);
}

// By name, whatever else changed.
TEST_F(SaveTest, OtherOrderNamesAndSizes) {
  auto saver = OpenSaver();
  auto state = State();
  SaveRight(*saver, state, Path("one"), nullptr);
  std::swap(state[0], state[2]);
  state[1].bytes = kBlock + 5;  // cut: its second block is shorter
  state.push_back(NewTensor("new", CAIRNFS_HOST, kBlock));
  state[3].name = "renamed";
  const auto result = SaveRight(*saver, state, Path("two"), Path("one").c_str(), 4096);
  EXPECT_EQ(result.base_use, static_cast<uint32_t>(CAIRNFS_BASE_USED)) << result.base_text;
  EXPECT_EQ(result.bytes_reused, 3 * kBlock + 17 + kBlock + 1 + kBlock + 1);
}

TEST_F(SaveTest, SnapshotLetsTheSourceChange) {
  cairnfs_saver_options options = {};
  options.snapshot = CAIRNFS_SNAPSHOT_DEVICE;
  auto saver = OpenSaver(options);
  std::vector<TestTensor> state{NewTensor("a", 0, 2 * kBlock), NewTensor("b", CAIRNFS_HOST, kBlock)};
  for (int round = 0; round < 3; round++) {
    Request made;
    Build(state, 64, made);
    const std::string path = Path(std::to_string(round));
    const std::string base = Path(std::to_string(round - 1));
    made.request.path = path.c_str();
    made.request.base = round > 0 ? base.c_str() : nullptr;
    auto outcome = saver->Start(made.request);
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    ASSERT_TRUE((*outcome)->WaitForSource(-1).ok());
    for (auto& tensor : state) Fill(tensor, 0, 100);
    const auto result = (*outcome)->Wait(-1);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->snapshot, static_cast<uint32_t>(CAIRNFS_SNAPSHOT_DEVICE));
    EXPECT_TRUE(Read(path) == made.expected);
    EXPECT_EQ(result->bytes_reused, round > 0 ? kBlock : 0);
  }
  devices_.devices[0].room_bytes = 0;
  auto second = OpenSaver(options);
  Request made;
  Build(state, 64, made);
  EXPECT_EQ(Save(*second, made, Path("x"), nullptr).error().code, ErrorCode::kRange);
}

TEST_F(SaveTest, WithoutRoomForASnapshotThereIsNone) {
  cairnfs_saver_options options = {};
  options.snapshot = CAIRNFS_SNAPSHOT_DEVICE;
  auto saver = OpenSaver(options);
  std::vector<TestTensor> state{NewTensor("a", 0, 2 * kBlock)};
  devices_.devices[0].room_bytes = kBlock;
  const auto result = SaveRight(*saver, state, Path("one"), nullptr);
  EXPECT_EQ(result.snapshot, static_cast<uint32_t>(CAIRNFS_SNAPSHOT_NONE));
}

TEST_F(SaveTest, ASnapshotThatIsNeeded) {
  cairnfs_saver_options options = {};
  options.snapshot = CAIRNFS_SNAPSHOT_DEVICE;
  auto saver = OpenSaver(options);
  const std::vector<TestTensor> state{NewTensor("a", 0, 2 * kBlock), NewTensor("b", 1, 2 * kBlock)};
  Request made;
  Build(state, 64, made);
  made.request.needs_snapshot = 1;
  devices_.devices[1].room_bytes = kBlock;
  EXPECT_EQ(Save(*saver, made, Path("one"), nullptr).error().code, ErrorCode::kRange);
  EXPECT_TRUE(Names().empty());
  devices_.devices[1].room_bytes = UINT64_MAX;
  const auto result = Save(*saver, made, Path("one"), nullptr);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->snapshot, static_cast<uint32_t>(CAIRNFS_SNAPSHOT_DEVICE));
  EXPECT_TRUE(Read(Path("one")) == made.expected);
  // A saver that makes no snapshots has none to need.
  EXPECT_TRUE(Save(*OpenSaver(), made, Path("two"), nullptr).ok());
}

// A ring of any size, and tensors that are staged or not.
TEST_F(SaveTest, SmallRings) {
  for (const uint64_t ring : {2 * kBlock, 3 * kBlock, 16 * kBlock}) {
    for (const uint32_t writers : {1U, 5U}) {
      cairnfs_saver_options options = {};
      options.ring_bytes = ring;
      options.writers = writers;
      options.copies_in_flight = 2;
      auto saver = OpenSaver(options);
      std::vector<TestTensor> state{NewTensor("a", 0, 9 * kBlock + 3), NewTensor("b", CAIRNFS_HOST, 9 * kBlock)};
      SaveRight(*saver, state, Path("one"), nullptr, 1);
      Fill(state[0], 3 * kBlock, 5 * kBlock);
      Fill(state[1], 4 * kBlock, 4 * kBlock + 1);
      const auto result = SaveRight(*saver, state, Path("two"), Path("one").c_str(), 1);
      EXPECT_EQ(result.blocks_changed, 3U);
    }
  }
}

// Host tensors that wait in the ring for the end of the save leave room for the device's, however small it is.
TEST_F(SaveTest, StagedHostTensorsDoNotHoldUpTheDevices) {
  for (const uint64_t ring : {2 * kBlock, 2 * kBlock + 4096, 4 * kBlock}) {
    cairnfs_saver_options options = {};
    options.ring_bytes = ring;
    auto saver = OpenSaver(options);
    std::vector<TestTensor> state{NewTensor("h", CAIRNFS_HOST, 5), NewTensor("d", 0, 9 * kBlock)};
    SaveRight(*saver, state, Path("one"), nullptr);
    Fill(state[0], 0, 5);
    Fill(state[1], kBlock, 8 * kBlock);
    const auto result = SaveRight(*saver, state, Path("two"), Path("one").c_str());
    EXPECT_EQ(result.blocks_changed, 8U);
  }
}

TEST_F(SaveTest, LiteralsLargerThanWhatMovesAtOnce) {
  auto saver = OpenSaver();
  for (const int32_t device : {0, CAIRNFS_HOST}) {
    std::vector<TestTensor> state{NewTensor("t", device, 2 * kBlock)};
    state[0].header.resize(5 * kBlock);
    for (char& c : state[0].header) c = static_cast<char>(random_());
    SaveRight(*saver, state, Path("one"), nullptr);
    const auto result = SaveRight(*saver, state, Path("two"), Path("one").c_str());
    EXPECT_EQ(result.bytes_written, 5 * kBlock);
  }
}

// Of a model with many small parts; looking at the others for each takes minutes.
TEST_F(SaveTest, ManyLiteralsBeforeATensor) {
  auto saver = OpenSaver();
  std::vector<TestTensor> state;
  for (int i = 0; i < 60'000; i++) state.push_back(NewTensor("empty" + std::to_string(i), CAIRNFS_HOST, 0));
  state.push_back(NewTensor("tensor", 0, kBlock));
  SaveRight(*saver, state, Path("one"), nullptr, 1);
  EXPECT_EQ(SaveRight(*saver, state, Path("two"), Path("one").c_str(), 1).bytes_reused, kBlock);
}

TEST_F(SaveTest, FilesWithoutTensors) {
  auto saver = OpenSaver();
  Request made;
  Build({}, 1, made);
  ASSERT_TRUE(Save(*saver, made, Path("zeros"), nullptr).ok());
  EXPECT_EQ(Read(Path("zeros")).size(), 100U);
  made.request.file_bytes = 0;
  made.request.mode = 0640;
  ASSERT_TRUE(Save(*saver, made, Path("empty"), nullptr).ok());
  struct stat found {};
  ASSERT_EQ(stat(Path("empty").c_str(), &found), 0);
  EXPECT_EQ(found.st_size, 0);
  EXPECT_EQ(found.st_mode & 07777, 0640U);
}

TEST_F(SaveTest, LeavesNoHandlesAndNoPinnedMemory) {
  {
    auto saver = OpenSaver();
    auto state = State();
    SaveRight(*saver, state, Path("one"), nullptr);
    SaveRight(*saver, state, Path("two"), Path("one").c_str());
  }
  EXPECT_EQ(devices_.devices[0].handles, 0);
  EXPECT_EQ(devices_.devices[1].handles, 0);
  EXPECT_EQ(devices_.pinned_bytes, 0);
}

// docs/gpu.md, "Fingerprints": two digests and a bit for each block, and an entry for each tensor; and for each block,
// up to 4096, the values of its tiles.
TEST_F(SaveTest, KeepsLittleMemoryOfTheDevice) {
  HostDevice& device = devices_.devices[0];
  const std::vector<TestTensor> state{NewTensor("a", 0, 6 * kBlock), NewTensor("b", 0, 2 * kBlock)};
  const uint64_t before = device.AllocatedBytes();
  const uint64_t kept = 8 * (2 * Digest::kBytes + kTilesPerBlock * Digest::kBytes) + sizeof(uint32_t) + 2 * 32;
  {
    auto saver = OpenSaver();
    for (int round = 0; round < 4; round++) {
      const std::string base = Path(std::to_string(round - 1));
      SaveRight(*saver, state, Path(std::to_string(round)), round > 0 ? base.c_str() : nullptr);
      Request made;
      Build(state, 64, made);
      EXPECT_FALSE(Save(*saver, made, Path("missing/file"), base.c_str()).ok());
      EXPECT_LE(device.AllocatedBytes() - before, kept);
    }
  }
  EXPECT_EQ(device.AllocatedBytes(), before);
}

// Random states, changes and layouts over many rounds, with a base that others spoil between saves. By hand:
// CAIRNFS_CLIENT_TEST_ROUNDS says how many, and TMPDIR where.
TEST_F(SaveTest, RandomRounds) {
  cairnfs_saver_options options = {};
  options.ring_bytes = 4 * kBlock;
  auto saver = OpenSaver(options);
  auto state = State();
  std::string base;
  uint64_t reused = 0;
  const char* asked = std::getenv("CAIRNFS_CLIENT_TEST_ROUNDS");
  const int rounds = asked == nullptr ? 50 : std::atoi(asked);
  for (int round = 0; round < rounds; round++) {
    for (auto& tensor : state) {
      if (random_() % 3 != 0) continue;
      const uint64_t at = random_() % tensor.bytes;
      Fill(tensor, at, at + 1 + random_() % std::min<uint64_t>(tensor.bytes - at, 1000));
    }
    if (random_() % 4 == 0) std::swap(state[random_() % state.size()], state[random_() % state.size()]);
    if (random_() % 8 == 0) {
      auto& tensor = state[random_() % state.size()];
      tensor = NewTensor(tensor.name, static_cast<int32_t>(random_() % 3) - 1, 1 + random_() % (3 * kBlock));
    }
    bool is_spoiled = false;
    if (!base.empty() && random_() % 3 == 0) {
      is_spoiled = true;
      switch (random_() % 4) {
        case 0: {
          const int file = open(base.c_str(), O_WRONLY);
          ASSERT_EQ(pwrite(file, "x", 1, static_cast<off_t>(random_() % std::filesystem::file_size(base))), 1);
          close(file);
          break;
        }
        case 1: std::filesystem::resize_file(base, std::filesystem::file_size(base) / 2); break;
        case 2: {
          std::filesystem::copy_file(base, base + ".copy");
          std::filesystem::rename(base + ".copy", base);
          break;
        }
        default: std::filesystem::remove(base); break;
      }
    }
    const std::string path = Path(std::to_string(round % 3));
    const uint64_t alignment = uint64_t{1} << random_() % 13;
    const auto result = SaveRight(*saver, state, path, base.empty() ? nullptr : base.c_str(), alignment);
    ASSERT_FALSE(HasFailure()) << "round " << round;
    if (is_spoiled) {
      ASSERT_NE(result.base_use, static_cast<uint32_t>(CAIRNFS_BASE_USED)) << "round " << round;
      ASSERT_EQ(result.bytes_reused, 0U);
      ASSERT_NE(result.base_text[0], '\0');
    } else if (!base.empty()) {
      ASSERT_EQ(result.base_use, static_cast<uint32_t>(CAIRNFS_BASE_USED)) << result.base_text;
    }
    reused += result.bytes_reused;
    base = path;
  }
  EXPECT_GT(reused, static_cast<uint64_t>(rounds) * kBlock / 2);
}

}  // namespace
}  // namespace cairnfs::client
