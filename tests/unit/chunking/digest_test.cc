#include "chunking/digest.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "random_bytes.h"

namespace cairnfs::chunking {
namespace {

// From https://github.com/BLAKE3-team/BLAKE3/blob/master/test_vectors/test_vectors.json
TEST(Digest, PublishedValues) {
  EXPECT_EQ(ComputeDigest({}).ToHex(), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
  EXPECT_EQ(ComputeDigest(AsBytes(std::string_view("\0", 1))).ToHex(),
            "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213");
}

TEST(Digest, PiecesMakeNoDifference) {
  auto bytes = RandomBytes(300'000, 1);
  Digest whole = ComputeDigest(bytes);
  std::mt19937_64 random(2);
  Digester digester;
  for (int round = 0; round < 20; round++) {
    digester.Reset();
    for (ByteSpan rest = bytes; !rest.empty();) {
      size_t size = std::min<size_t>(rest.size(), random() % 70'000);
      digester.Update(rest.first(size));
      rest = rest.subspan(size);
    }
    EXPECT_EQ(digester.Finish(), whole);
    EXPECT_EQ(digester.Finish(), whole);
  }
}

TEST(Digest, EveryOwnerHasItsOwnName) {
  const auto bytes = RandomBytes(5000, 7);
  const Digest digest = ComputeDigest(bytes);
  EXPECT_EQ(NameBytes(Owner{}, bytes), digest);
  const uint32_t owners[] = {0, 1, 1000, 1001, 0x01020304, UINT32_MAX};
  for (const uint32_t one : owners) {
    const Digest name = NameBytes(Owner{one}, bytes);
    EXPECT_EQ(name, NameOf(digest, Owner{one}));
    EXPECT_TRUE(Names(name, digest)) << one;
    for (const uint32_t other : owners) {
      EXPECT_EQ(name == NameBytes(Owner{other}, bytes), one == other) << one << ' ' << other;
      EXPECT_EQ(DigestHash()(name) == DigestHash()(NameBytes(Owner{other}, bytes)), one == other)
          << one << ' ' << other;
    }
  }
  EXPECT_EQ(NameBytes(Owner{0x01020304}, {}).ToHex(),
            "ab104bb8f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
}

// The bytes of a name that an owner may change are the first four: any other that is wrong is found.
TEST(Digest, ANameIsOfItsBytesAlone) {
  const auto bytes = RandomBytes(5000, 8);
  const Digest digest = ComputeDigest(bytes);
  for (size_t bit = 0; bit < Digest::kBytes * 8; bit++) {
    Digest flipped = digest;
    flipped.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(Names(flipped, digest), bit < 32) << bit;
  }
}

TEST(Digest, PiecesAroundSixteensMakeNoDifference) {
  const auto bytes = RandomBytes(100'000, 3);
  for (size_t size : {1, 1024, 16'383, 16'384, 16'385, 32'768, 49'153}) {
    Digester digester;
    for (size_t at = 0; at < bytes.size(); at += size) {
      digester.Update(ByteSpan(bytes).subspan(at, std::min(size, bytes.size() - at)));
    }
    EXPECT_EQ(digester.Finish(), ComputeDigest(bytes)) << "pieces of " << size;
  }
}

TEST(Digest, AgreesWithB3sum) {
  if (std::system("b3sum --version > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "b3sum is not installed; the digest was not compared with it";
  }
  std::string folder = (std::filesystem::temp_directory_path() / "cairnfs_digest_XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  for (size_t size : {0, 1, 63, 64, 65, 1023, 1024, 1025, 4096, 65537, 1'048'576, 3'000'001}) {
    auto bytes = RandomBytes(size, size);
    const std::string path = folder + "/bytes";
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(size));
    FILE* pipe = popen(("b3sum --no-names " + path).c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    char line[128] = {};
    EXPECT_NE(std::fgets(line, sizeof line, pipe), nullptr);
    pclose(pipe);
    EXPECT_EQ(ComputeDigest(bytes).ToHex(), std::string(line).substr(0, 64)) << "size " << size;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace cairnfs::chunking
