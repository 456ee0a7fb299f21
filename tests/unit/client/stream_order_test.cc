// The order of a save's work on devices and of the caller's: a save has what was put on the caller's streams before it
// began, and nothing of what was put there once the source was free.
#include "save_world.h"

namespace cairnfs::client {
namespace {

class StreamOrder : public SaveWorld {
 protected:
  // A tensor, and its bytes as they are once all work of the caller is done.
  struct Source {
    TestTensor tensor;
    std::vector<std::byte> bytes;
  };

  StreamOrder() {
    for (int32_t device = 0; device < 2; device++) {
      streams_[device] = {device, 0, *devices_.devices[device].NewStream()};
    }
    for (const auto& [name, device, bytes] :
         {std::tuple("a", 0, 6 * kBlock), std::tuple("b", 1, 3 * kBlock + 5), std::tuple("c", CAIRNFS_HOST, 2 * kBlock),
          std::tuple("d", 0, uint64_t{7}), std::tuple("e", 1, kBlock)}) {
      const TestTensor tensor = NewTensor(name, device, bytes);
      sources_.push_back({tensor, {tensor.data, tensor.data + bytes}});
    }
  }
  ~StreamOrder() override {
    for (const cairnfs_stream& stream : streams_) {
      WaitFor(stream);
      devices_.devices[stream.device].DeleteStream(stream.stream);
    }
  }
  void WaitFor(const cairnfs_stream& stream) {
    EXPECT_TRUE(devices_.devices[stream.device].WaitForStream(stream.stream).ok());
  }

  // Changes most of the tensors from some place on. Of devices by work on the caller's streams, or at once: as work
  // that is ordered after none of those.
  enum class Way { kOnStreams, kAtOnce };
  void Change(Way way) {
    for (Source& source : sources_) {
      if (random_() % 3 == 0) continue;
      const uint64_t at = random_() % source.tensor.bytes;
      const uint64_t bytes = random_() % 2 == 0 ? source.tensor.bytes - at : 1;
      const int value = static_cast<int>(random_() % 256);
      std::memset(&source.bytes[at], value, bytes);
      std::byte* to = source.tensor.data + at;
      if (source.tensor.device == CAIRNFS_HOST || way == Way::kAtOnce) {
        std::memset(to, value, bytes);
      } else {
        devices_.devices[source.tensor.device].Put(streams_[source.tensor.device].stream,
                                                   [to, value, bytes] { std::memset(to, value, bytes); });
      }
    }
  }

  void BuildOfSources(Request& made) {
    std::vector<TestTensor> tensors;
    for (const Source& source : sources_) tensors.push_back(source.tensor);
    Build(tensors, 64, made);
    auto source = sources_.begin();
    for (cairnfs_segment& segment : made.segments) {
      if (segment.kind != CAIRNFS_TENSOR) continue;
      segment.name = source->tensor.name.c_str();
      std::copy(source->bytes.begin(), source->bytes.end(), made.expected.begin() + static_cast<long>(segment.offset));
      source++;
    }
    made.request.streams = streams_.data();
    made.request.stream_count = streams_.size();
  }

  // Saves to `path` while the sources change. Now and then somebody spoils the base when the save has begun, so that
  // what was not copied is read after all.
  void SaveWhileChanging(Saver& saver, const std::string& path, const std::string& base) {
    Change(Way::kOnStreams);
    Request made;
    BuildOfSources(made);
    made.request.path = path.c_str();
    made.request.base = base.empty() ? nullptr : base.c_str();
    auto outcome = saver.Start(made.request);
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    if (!base.empty() && random_() % 4 == 0) std::fstream(base).put('x');
    ASSERT_TRUE((*outcome)->WaitForSource(-1).ok());
    Change(random_() % 2 == 0 ? Way::kOnStreams : Way::kAtOnce);
    for (const cairnfs_stream& stream : streams_) {
      if (random_() % 2 == 0) WaitFor(stream);
    }
    const auto result = (*outcome)->Wait(-1);
    ASSERT_TRUE(result.ok()) << result.error().message;
    ASSERT_TRUE(Read(path) == made.expected) << path << " has wrong bytes";
    reused_bytes_ += result->bytes_reused;
  }

  void Rounds(uint32_t snapshot, uint64_t ring_bytes) {
    cairnfs_saver_options options = {};
    options.snapshot = snapshot;
    options.ring_bytes = ring_bytes;
    for (const uint32_t threads : {1U, 3U}) {
      options.writers = threads;
      options.copies_in_flight = threads;
      auto saver = OpenSaver(options);
      std::string base;
      for (int round = 0; round < 20; round++) {
        const std::string path = Path(std::to_string(round % 3));
        SaveWhileChanging(*saver, path, base);
        ASSERT_FALSE(HasFailure()) << threads << " writers, round " << round;
        base = random_() % 4 == 0 ? "" : path;
      }
    }
    EXPECT_GT(reused_bytes_, 10 * kBlock);
  }

  std::vector<Source> sources_;
  std::array<cairnfs_stream, 2> streams_;
  uint64_t reused_bytes_ = 0;
};

TEST_F(StreamOrder, OfTheSource) { Rounds(CAIRNFS_SNAPSHOT_NONE, 0); }
TEST_F(StreamOrder, OfTheSourceInASmallRing) { Rounds(CAIRNFS_SNAPSHOT_NONE, 2 * kBlock); }
TEST_F(StreamOrder, OfASnapshot) { Rounds(CAIRNFS_SNAPSHOT_DEVICE, 0); }
TEST_F(StreamOrder, OfASnapshotInASmallRing) { Rounds(CAIRNFS_SNAPSHOT_DEVICE, 2 * kBlock); }

}  // namespace
}  // namespace cairnfs::client
