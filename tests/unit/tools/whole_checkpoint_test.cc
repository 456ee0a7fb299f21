#include "whole_checkpoint.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace cairnfs::tools {
namespace {

namespace stdfs = std::filesystem;

class WholeCheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/whole-checkpoint-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { stdfs::remove_all(root_); }
  void Put(const std::string& path, const std::string& bytes) {
    stdfs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path, std::ios::binary) << bytes;
  }
  std::string Why() { return WhyNotWhole((root_ / "step-1").string(), Depth::kAllBytes).value_or("whole"); }
  static std::string Safetensors(const std::string& header, size_t bytes) {
    std::string text;
    for (int i = 0; i < 8; ++i) text += static_cast<char>(header.size() >> (8 * i) & 0xff);
    return text + header + std::string(bytes, 'x');
  }

  stdfs::path root_;
};

TEST_F(WholeCheckpointTest, FormatsTellWhatIsCutShort) {
  Put("step-1/model.pt", std::string("PK\3\4", 4) + std::string(100, 'x'));
  EXPECT_NE(Why().find("model.pt: it begins as a zip file"), std::string::npos);
  Put("step-1/model.pt", "");
  EXPECT_EQ(Why(), "model.pt: it has 0 bytes: it is cut short");
  Put("step-1/model.pt", "\x80\x02}q");
  EXPECT_EQ(Why(), "whole");
}

TEST_F(WholeCheckpointTest, SafetensorsSayHowLongTheyAre) {
  const std::string header = R"({"__metadata__":{"a":"b"},"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})";
  Put("step-1/m.safetensors", Safetensors(header, 16));
  EXPECT_EQ(Why(), "whole");
  Put("step-1/m.safetensors", Safetensors(header, 15));
  EXPECT_NE(Why().find("its tensors have 16 bytes, and 15 are there"), std::string::npos);
  Put("step-1/m.safetensors", Safetensors(header, 0).substr(0, 20));
  EXPECT_NE(Why().find("shorter than its safetensors header"), std::string::npos);
  Put("step-1/m.safetensors", "abc");
  EXPECT_NE(Why().find("shorter than the length"), std::string::npos);
  Put("step-1/m.safetensors", std::string(8, '\xff') + "x");
  EXPECT_NE(Why().find("more than 100 MB"), std::string::npos);
  Put("step-1/m.safetensors", Safetensors("[1]", 0));
  EXPECT_NE(Why().find("no JSON"), std::string::npos);
  Put("step-1/m.safetensors", Safetensors(R"({"w":{"data_offsets":"no"}})", 0));
  EXPECT_NE(Why().find("does not say where tensor 'w' lies"), std::string::npos);
}

TEST_F(WholeCheckpointTest, FilesThatAreWrittenLastAreMissed) {
  Put("step-1/a/ckpt.data-00000-of-00001", "1");
  EXPECT_NE(Why().find("ckpt.index is missing"), std::string::npos);
  Put("step-1/a/ckpt.index", "1");
  EXPECT_EQ(Why(), "whole");
  Put("step-1/__0_0.distcp", "1");
  EXPECT_NE(Why().find(".metadata is missing"), std::string::npos);
  Put("step-1/.metadata", "1");
  EXPECT_EQ(Why(), "whole");
}

TEST_F(WholeCheckpointTest, WhatIsWrittenLastHasBytes) {
  Put("step-1/ckpt.data-00000-of-00001", "1");
  Put("step-1/ckpt.index", "");
  EXPECT_EQ(Why(), "ckpt.index has 0 bytes, and TensorFlow writes it last");
  Put("step-1/ckpt.index", "1");
  Put("step-1/__0_0.distcp", "1");
  Put("step-1/.metadata", "");
  EXPECT_EQ(Why(), ".metadata has 0 bytes, and torch.distributed writes it last");
  Put("step-1/elsewhere/.metadata", "1");
  stdfs::remove(root_ / "step-1/.metadata");
  stdfs::create_symlink("elsewhere/.metadata", root_ / "step-1/.metadata");
  EXPECT_EQ(Why(), "whole");
}

TEST_F(WholeCheckpointTest, AllShardsAreThere) {
  Put("step-1/ckpt.index", "1");
  Put("step-1/ckpt.data-00000-of-00002", "1");
  EXPECT_EQ(Why(), "1 of 2 files ckpt.data-*-of-* are there");
  Put("step-1/ckpt.data-00001-of-00002", "1");
  EXPECT_EQ(Why(), "whole");
  // Who names them so without an index may load each by itself.
  const std::string tensors = Safetensors("{}", 0);
  Put("step-1/model-00002-of-00003.safetensors", tensors);
  EXPECT_EQ(Why(), "whole");
  Put("step-1/model.safetensors.index.json", R"({"weight_map": {}})");
  Put("step-1/model-00003-of-00003.safetensors", tensors);
  EXPECT_EQ(Why(), "2 of 3 files model-*-of-*.safetensors are there");
  Put("step-1/model-00001-of-00003.safetensors", tensors);
  EXPECT_EQ(Why(), "whole");
}

TEST_F(WholeCheckpointTest, NamesThatOnlyLookLikeShardsAreFiles) {
  for (const char* name : {"-of-", "a-of-2", "1-of-2", "a-b-of-2", "a-1-of-b", "a-99999999999999999999-of-2",
                           "a-1-of-99999999999999999999", "a-1-of-18446744073709551615", "a--1-of-3"}) {
    Put(std::string("step-1/") + name, "1");
  }
  EXPECT_EQ(Why(), "whole");
}

}  // namespace
}  // namespace cairnfs::tools
