// A folder, savers on devices in memory of the host, states of tensors, and the files that must come of them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "client/saver.h"
#include "host_device.h"

namespace cairnfs::client {

inline constexpr uint64_t kBlock = kBlockBytes;

class SaveWorld : public testing::Test {
 protected:
  SaveWorld() {
    folder_ = (std::filesystem::temp_directory_path() / "cairnfs_client_XXXXXX").string();
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }
  ~SaveWorld() override { std::filesystem::remove_all(folder_); }

  struct TestTensor {
    std::string name;
    int32_t device = CAIRNFS_HOST;
    std::byte* data = nullptr;
    uint64_t bytes = 0;
    std::string header = "header of " + name;  // the literal before it
  };

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  TestTensor NewTensor(const std::string& name, int32_t device, uint64_t bytes) {
    TestTensor tensor{.name = name, .device = device, .bytes = bytes};
    if (device == CAIRNFS_HOST) {
      memory_.emplace_back(bytes);
      tensor.data = memory_.back().data();
    } else {
      tensor.data = static_cast<std::byte*>(*devices_.devices[device].Allocate(bytes));
    }
    Fill(tensor, 0, bytes);
    return tensor;
  }
  void Fill(TestTensor& tensor, uint64_t begin, uint64_t end) {
    // A page of random bytes, again and again, each time begun with a number of its own.
    std::array<uint64_t, 512> page;
    for (uint64_t& word : page) word = random_();
    for (uint64_t at = begin; at < end; at += sizeof page) {
      page[0]++;
      std::memcpy(tensor.data + at, page.data(), std::min<uint64_t>(sizeof page, end - at));
    }
  }

  // The request's segments: a header, then the tensors in their order, each at a multiple of `alignment` and behind its
  // literal.
  struct Request {
    std::vector<std::string> literals;
    std::vector<cairnfs_segment> segments;
    std::vector<std::byte> expected;
    cairnfs_save_request request = {};
  };
  static void Build(const std::vector<TestTensor>& tensors, uint64_t alignment, Request& made) {
    uint64_t at = 0;
    made.literals.reserve(tensors.size() + 1);
    const auto add = [&](cairnfs_segment segment) {
      made.expected.resize(segment.offset + segment.bytes);
      if (segment.bytes > 0) std::memcpy(&made.expected[segment.offset], segment.data, segment.bytes);
      at = segment.offset + segment.bytes;
      made.segments.push_back(segment);
    };
    for (const TestTensor& tensor : tensors) {
      made.literals.push_back(tensor.header);
      add({at, made.literals.back().size(), made.literals.back().data(), CAIRNFS_LITERAL, CAIRNFS_HOST, nullptr});
      add({AlignUp(at, alignment), tensor.bytes, tensor.data, CAIRNFS_TENSOR, tensor.device, tensor.name.c_str()});
    }
    made.expected.resize(made.expected.size() + 100);  // zeros at the end
    made.request.struct_bytes = sizeof made.request;
    made.request.file_bytes = made.expected.size();
    made.request.segments = made.segments.data();
    made.request.segment_count = made.segments.size();
  }

  std::unique_ptr<Saver> OpenSaver(cairnfs_saver_options options = {}) {
    auto saver = Saver::Open(options, devices_);
    EXPECT_TRUE(saver.ok());
    return std::move(*saver);
  }

  // Saves and waits.
  Result<cairnfs_save_result> Save(Saver& saver, Request& made, const std::string& path, const char* base) {
    made.request.path = path.c_str();
    made.request.base = base;
    CAIRNFS_ASSIGN_OR_RETURN(auto outcome, saver.Start(made.request));
    return outcome->Wait(-1);
  }
  // The same, and it must succeed with the right bytes.
  cairnfs_save_result SaveRight(Saver& saver, const std::vector<TestTensor>& tensors, const std::string& path,
                                const char* base, uint64_t alignment = 64) {
    Request made;
    Build(tensors, alignment, made);
    const auto result = Save(saver, made, path, base);
    EXPECT_TRUE(result.ok()) << result.error().message;
    if (!result.ok()) return {};
    EXPECT_TRUE(Read(path) == made.expected) << path << " has wrong bytes";
    return *result;
  }

  static std::vector<std::byte> Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) return {};
    std::vector<std::byte> out(static_cast<size_t>(file.tellg()));
    file.seekg(0);
    file.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
    return out;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string folder_;
  std::mt19937_64 random_{20240607};
  HostDevices devices_;
  std::deque<std::vector<std::byte>> memory_;
};

}  // namespace cairnfs::client
