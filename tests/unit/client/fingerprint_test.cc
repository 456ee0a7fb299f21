// BLAKE3 as the kernels make it, and as builds without a BLAKE3 library do, at every length around the ends of inputs,
// chunks, tiles and blocks: against published values and against the library.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "chunking/digest.h"
#include "client/block_digest.h"
#include "host_device.h"

namespace cairnfs::client {
namespace {

// The input of the published test vectors: bytes 0, 1, ..., 250, 0, 1, ...
std::vector<std::byte> VectorInput(size_t bytes) {
  std::vector<std::byte> input(bytes);
  for (size_t i = 0; i < bytes; i++) input[i] = static_cast<std::byte>(i % 251);
  return input;
}

struct Published {
  size_t bytes;
  const char* digest;
};
// https://github.com/BLAKE3-team/BLAKE3/blob/master/test_vectors/test_vectors.json, "hash", its first 32 bytes.
constexpr Published kPublished[] = {
    {0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"},
    {1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"},
    {1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"},
    {1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"},
    {2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a"},
    {102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"},
};

void RunKernels(HostDevice& device, const FingerprintJob& job) {
  EXPECT_TRUE(device.Fingerprint(job, nullptr).ok());
  EXPECT_TRUE(device.WaitForStream(nullptr).ok());
}

// Digests as a device makes them, two blocks at a time.
std::vector<Digest> DeviceDigests(HostDevice& device, const std::byte* data, uint64_t bytes) {
  const auto blocks = static_cast<uint32_t>((bytes + kBlockBytes - 1) / kBlockBytes);
  const FingerprintTensor tensor{reinterpret_cast<const unsigned char*>(data), bytes, 0, 0, 0, 0};
  std::vector<uint32_t> values(2 * kTilesPerBlock * blake3::kValueWords);
  std::vector<Digest> digests(blocks);
  const FingerprintJob job{&tensor, 1, blocks, 2, values.data(), nullptr, reinterpret_cast<uint32_t*>(digests.data()),
                           nullptr};
  RunKernels(device, job);
  return digests;
}

std::vector<size_t> Lengths() {
  std::vector<size_t> lengths;
  for (size_t around : {size_t{1}, size_t{64}, size_t{128}, size_t{1024}, size_t{2048}, size_t{3072}, size_t{4096},
                        size_t{17408}, size_t{65536}, size_t{kTileBytes}, size_t{3 * kTileBytes}, size_t{kBlockBytes},
                        size_t{kBlockBytes + 5 * kTileBytes}, size_t{4 * kBlockBytes}}) {
    for (size_t length = around > 3 ? around - 3 : 1; length <= around + 3; length++) lengths.push_back(length);
  }
  return lengths;
}

TEST(Fingerprint, PublishedValues) {
  HostDevice device;
  for (const Published& published : kPublished) {
    const auto input = VectorInput(published.bytes);
    EXPECT_EQ(PortableDigest(input).ToHex(), published.digest) << published.bytes;
    EXPECT_EQ(DigestOfBlock(input).ToHex(), published.digest) << published.bytes;
    if (published.bytes == 0) continue;  // has no block
    EXPECT_EQ(DeviceDigests(device, input.data(), input.size())[0].ToHex(), published.digest) << published.bytes;
  }
}

TEST(Fingerprint, EveryLengthAgreesWithTheLibrary) {
  HostDevice device;
  const auto input = VectorInput(4 * kBlockBytes + 3);
  for (const size_t length : Lengths()) {
    const auto digests = DeviceDigests(device, input.data(), length);
    for (size_t block = 0; block < digests.size(); block++) {
      const size_t at = block * kBlockBytes;
      const ByteSpan bytes(input.data() + at, std::min<size_t>(kBlockBytes, length - at));
      const Digest expected = chunking::ComputeDigest(bytes);
      EXPECT_EQ(digests[block], expected) << length << " bytes, block " << block;
      EXPECT_EQ(PortableDigest(bytes), expected) << length << " bytes, block " << block;
    }
  }
}

TEST(Fingerprint, EveryAlignmentAgrees) {
  HostDevice device;
  const auto input = VectorInput(200'000);
  for (size_t shift = 1; shift < 17; shift++) {
    const size_t bytes = 150'001 + shift;
    EXPECT_EQ(DeviceDigests(device, input.data() + shift, bytes)[0],
              chunking::ComputeDigest({input.data() + shift, bytes}))
        << shift;
  }
}

// Several tensors in one job; a bit says what differs from the digests of before.
TEST(Fingerprint, BitsSayWhichBlocksChanged) {
  HostDevice device;
  auto first = VectorInput(3 * kBlockBytes + 100);
  auto second = VectorInput(40 * size_t{1024});
  auto third = VectorInput(2 * kBlockBytes);
  std::vector<FingerprintTensor> tensors{
      {reinterpret_cast<unsigned char*>(first.data()), first.size(), 0, 3, 4, 0},
      {reinterpret_cast<unsigned char*>(second.data()), second.size(), 4, 0, 0, 0},  // was not there
      {reinterpret_cast<unsigned char*>(third.data()), third.size(), 5, 0, 1, 0}};   // has grown
  std::vector<uint32_t> values(3 * kTilesPerBlock * blake3::kValueWords);
  std::vector<Digest> digests(7);
  std::vector<Digest> old(7);
  const auto* old_words = reinterpret_cast<const uint32_t*>(old.data());
  uint32_t bits = 0;
  FingerprintJob job{tensors.data(), 3, 7, 3, values.data(), old_words, reinterpret_cast<uint32_t*>(digests.data()),
                     nullptr};
  RunKernels(device, job);
  for (size_t i = 0; i < 4; i++) old[3 + i] = digests[i];
  old[0] = digests[5];
  job.changed_bits = &bits;
  RunKernels(device, job);
  EXPECT_EQ(bits, 0b1010000U);
  first[kBlockBytes - 1] ^= std::byte{1};
  first.back() ^= std::byte{128};
  bits = 0;
  RunKernels(device, job);
  EXPECT_EQ(bits, 0b1011001U);
}

}  // namespace
}  // namespace cairnfs::client
