// What a load reads, and what it refuses.
#include <sys/mman.h>

#include "client/loader.h"
#include "save_world.h"

namespace cairnfs::client {
namespace {

class LoadTest : public SaveWorld {
 protected:
  LoadTest() {
    TestTensor all = NewTensor("all", CAIRNFS_HOST, 11'000'003);
    bytes_.assign(all.data, all.data + all.bytes);
    std::ofstream(Path("file"), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes_.data()), static_cast<std::streamsize>(bytes_.size()));
  }
  Status ReadInto(std::vector<cairnfs_read> reads, const std::string& path, uint64_t ring_bytes = 2 * kBlock) {
    cairnfs_loader_options options = {};
    options.ring_bytes = ring_bytes;
    auto loader = Loader::Open(options, devices_);
    if (!loader.ok()) return loader.error();
    cairnfs_load_request request = {};
    request.path = path.c_str();
    request.reads = reads.data();
    request.read_count = reads.size();
    return (*loader)->Load(request);
  }
  std::vector<std::byte> bytes_;
};

TEST_F(LoadTest, RangesToEachKindOfMemory) {
  TestTensor host = NewTensor("host", CAIRNFS_HOST, 5'000'000);
  TestTensor one = NewTensor("one", 0, 6'000'000);
  TestTensor two = NewTensor("two", 1, 3);
  const Status status = ReadInto({{1, host.bytes, host.data, CAIRNFS_HOST, 0, "host"},
                                  {bytes_.size() - one.bytes, one.bytes, one.data, 0, 0, nullptr},
                                  {7, two.bytes, two.data, 1, 0, nullptr},
                                  {bytes_.size(), 0, nullptr, CAIRNFS_HOST, 0, nullptr}},
                                 Path("file"));
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(std::memcmp(host.data, &bytes_[1], host.bytes), 0);
  EXPECT_EQ(std::memcmp(one.data, &bytes_[bytes_.size() - one.bytes], one.bytes), 0);
  EXPECT_EQ(std::memcmp(two.data, &bytes_[7], two.bytes), 0);
  EXPECT_EQ(devices_.devices[0].handles, 0);
  EXPECT_EQ(devices_.pinned_bytes, 0);
}

// Half of such a ring is no multiple of what its pieces are.
TEST_F(LoadTest, RingsOfAnySize) {
  TestTensor tensor = NewTensor("tensor", 0, 5'000'000);
  for (const uint64_t ring : {2 * kBlock + 1, uint64_t{3'000'000}}) {
    Fill(tensor, 0, tensor.bytes);
    const Status status = ReadInto({{1, tensor.bytes, tensor.data, 0, 0, "tensor"}}, Path("file"), ring);
    ASSERT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ(std::memcmp(tensor.data, &bytes_[1], tensor.bytes), 0) << ring;
  }
}

// What the caller put on its stream before does not overwrite what is loaded.
TEST_F(LoadTest, WritesAfterTheWorkOfTheCallersStream) {
  HostDevice& device = devices_.devices[0];
  TestTensor tensor = NewTensor("tensor", 0, 5'000'000);
  const StreamHandle own = *device.NewStream();
  for (const StreamHandle stream : {StreamHandle{nullptr}, own}) {
    device.Put(stream, [&tensor] { std::memset(tensor.data, 7, tensor.bytes); });
    auto loader = Loader::Open({}, devices_);
    ASSERT_TRUE(loader.ok());
    const cairnfs_read read{1, tensor.bytes, tensor.data, 0, 0, "tensor"};
    const cairnfs_stream streams[] = {{0, 0, stream}};
    const std::string path = Path("file");
    const cairnfs_load_request request{sizeof request, 0, path.c_str(), &read, 1, streams, stream == own ? 1U : 0U};
    ASSERT_TRUE((*loader)->Load(request).ok());
    ASSERT_TRUE(device.WaitForStream(stream).ok());
    EXPECT_EQ(std::memcmp(tensor.data, &bytes_[1], tensor.bytes), 0);
  }
  device.DeleteStream(own);
}

TEST_F(LoadTest, Refusals) {
  TestTensor host = NewTensor("host", CAIRNFS_HOST, 100);
  const auto code = [&](const cairnfs_read& read, const std::string& path) {
    const Status status = ReadInto({read}, path);
    EXPECT_FALSE(status.ok());
    if (status.ok()) return ErrorCode::kFailed;
    EXPECT_NE(status.error().message.find(path), std::string::npos) << status.error().message;
    return status.error().code;
  };
  const std::string file = Path("file");
  EXPECT_EQ(code({bytes_.size(), 1, host.data, CAIRNFS_HOST, 0, "x"}, file), ErrorCode::kCorrupt);
  EXPECT_EQ(code({UINT64_MAX, 2, host.data, CAIRNFS_HOST, 0, "x"}, file), ErrorCode::kCorrupt);
  EXPECT_EQ(code({0, 1, nullptr, CAIRNFS_HOST, 0, "x"}, file), ErrorCode::kStale);
  EXPECT_EQ(code({0, 1, host.data, 0, 0, "x"}, file), ErrorCode::kStale);
  EXPECT_EQ(code({0, 1, host.data, 7, 0, "x"}, file), ErrorCode::kUnavailable);
  EXPECT_EQ(code({0, 1, host.data, -2, 0, "x"}, file), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({0, 1, host.data, CAIRNFS_HOST, 0, "x"}, Path("none")), ErrorCode::kNotFound);
  EXPECT_EQ(code({0, 1, host.data, CAIRNFS_HOST, 0, "x"}, folder_), ErrorCode::kIsDirectory);
  void* fixed = mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(code({0, 1, fixed, CAIRNFS_HOST, 0, "x"}, file), ErrorCode::kStale);
  mprotect(fixed, 4096, PROT_READ | PROT_WRITE);
  EXPECT_EQ(code({0, 4097, fixed, CAIRNFS_HOST, 0, "x"}, file), ErrorCode::kStale);
  EXPECT_TRUE(ReadInto({{0, 4096, fixed, CAIRNFS_HOST, 0, "x"}}, file).ok());
  munmap(fixed, 8192);
  const Status overlap =
      ReadInto({{0, 60, host.data, CAIRNFS_HOST, 0, "x"}, {0, 60, host.data + 59, CAIRNFS_HOST, 0, "y"}}, file);
  ASSERT_FALSE(overlap.ok());
  EXPECT_EQ(overlap.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairnfs::client
