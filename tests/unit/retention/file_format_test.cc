#include "retention/file_format.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/coding.h"

namespace cairnfs::retention {
namespace {

constexpr std::string_view kFileMagic("PK\3\4", 4), kDirectoryMagic("PK\1\2", 4), kEndMagic("PK\5\6", 4);
constexpr std::string_view kZip64EndMagic("PK\6\6", 4), kLocatorMagic("PK\6\7", 4);

std::string Why(const std::string& name, const std::string& bytes) {
  const auto read = [&](uint64_t offset, size_t size) -> Result<std::string> {
    return offset > bytes.size() ? std::string() : bytes.substr(offset, size);
  };
  return WhyCutShort(name, bytes.size(), read).value_or("whole");
}

std::string EndRecord(uint32_t directory_bytes, uint32_t offset, const std::string& comment) {
  Encoder end;
  end.Text(kEndMagic).U32(0).U16(1).U16(1).U32(directory_bytes).U32(offset);
  return end.U16(static_cast<uint16_t>(comment.size())).Text(comment).Take();
}

struct Zip {
  std::string content = std::string(100, 'x');
  std::string comment = {};
  bool is_zip64 = false;

  // No reader looks into the entries here: only at where they lie.
  std::string Bytes() const {
    const std::string directory = std::string(kDirectoryMagic) + std::string(42, 'd');
    const std::string begin = std::string(kFileMagic) + content;
    if (!is_zip64) {
      const auto offset = static_cast<uint32_t>(begin.size());
      return begin + directory + EndRecord(static_cast<uint32_t>(directory.size()), offset, comment);
    }
    Encoder record;
    record.Text(kZip64EndMagic).U64(44).U32(0).U64(0).U64(1).U64(1).U64(directory.size()).U64(begin.size());
    record.Text(kLocatorMagic).U32(0).U64(begin.size() + directory.size()).U32(1);
    return begin + directory + record.Take() + EndRecord(0xffffffff, 0xffffffff, comment);
  }
};

TEST(FileFormatTest, AZipFileIsCutShortAtEveryLength) {
  for (const bool is_zip64 : {false, true}) {
    for (const std::string comment : {"", "said of it"}) {
      const std::string whole = Zip{.comment = comment, .is_zip64 = is_zip64}.Bytes();
      EXPECT_EQ(Why("model.bin", whole), "whole");
      for (size_t size = kFileMagic.size(); size < whole.size(); ++size) {
        EXPECT_NE(Why("model.bin", whole.substr(0, size)), "whole") << size << " of " << whole.size();
      }
    }
  }
}

TEST(FileFormatTest, AZipFileThatIsStoredInAnotherIsNotItsEnd) {
  const std::string inner = Zip{}.Bytes();
  const std::string outer = Zip{.content = "name" + inner}.Bytes();
  EXPECT_EQ(Why("model.pt", outer), "whole");
  EXPECT_NE(Why("model.pt", outer.substr(0, kFileMagic.size() + 4 + inner.size())), "whole");
}

TEST(FileFormatTest, ACommentIsNoEndOfAZipFile) {
  EXPECT_EQ(Why("model.pt", Zip{.comment = EndRecord(1, 1, "")}.Bytes()), "whole");
  EXPECT_EQ(Why("model.pt", Zip{.comment = std::string(65535, 'c')}.Bytes()), "whole");
  EXPECT_EQ(Why("model.pt", Zip{.comment = std::string(65535, 'c'), .is_zip64 = true}.Bytes()), "whole");
}

TEST(FileFormatTest, ADirectoryOfZerosIsNone) {
  std::string bytes = Zip{}.Bytes();
  std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(bytes.find(kDirectoryMagic)), 4, '\0');
  EXPECT_NE(Why("model.pt", bytes).find("where its directory is to be"), std::string::npos);
}

TEST(FileFormatTest, WhatAFileClaimsIsNotBelieved) {
  const std::string begin = std::string(kFileMagic) + std::string(60, 'x');
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{64}, UINT64_MAX - 1, UINT64_MAX}) {
    for (const uint64_t offset : {uint64_t{0}, uint64_t{64}, UINT64_MAX - 64, UINT64_MAX}) {
      for (const uint64_t place : {begin.size(), UINT64_MAX - 55, UINT64_MAX}) {
        Encoder record;
        record.Text(kZip64EndMagic).U64(UINT64_MAX).U32(0).U64(0).U64(UINT64_MAX).U64(UINT64_MAX);
        record.U64(size).U64(offset).Text(kLocatorMagic).U32(0).U64(place).U32(1);
        const std::string why = Why("model.pt", begin + record.Take() + EndRecord(0xffffffff, 0xffffffff, ""));
        const bool is_right_before = size == 0 && offset == begin.size() && place == begin.size();
        const bool is_all_before = size == begin.size() && offset == 0 && place == begin.size();
        if (is_all_before) {
          EXPECT_NE(why.find("where its directory is to be"), std::string::npos) << why;
        } else {
          EXPECT_EQ(why == "whole", is_right_before) << size << " " << offset << " " << place;
        }
      }
    }
  }
}

TEST(FileFormatTest, LittleOfAZipFileIsRead) {
  // Of a file of nearly 2^64 bytes, whose end has as many end records as fit, none of them right.
  constexpr uint64_t kSize = UINT64_MAX - 1;
  uint64_t bytes_read = 0;
  int reads = 0;
  const auto read = [&](uint64_t offset, size_t size) -> Result<std::string> {
    EXPECT_TRUE(offset <= kSize && size <= kSize - offset);
    bytes_read += size;
    ++reads;
    if (offset == 0) return std::string(kFileMagic);
    std::string bytes;
    while (bytes.size() < size) bytes += kEndMagic;
    return bytes.substr(0, size);
  };
  EXPECT_TRUE(WhyCutShort("model.pt", kSize, read));
  EXPECT_LE(bytes_read, 66u * 1024);
  EXPECT_LE(reads, 3);
}

TEST(FileFormatTest, ASavedFileHasABeginning) {
  for (const std::string name : {"model.pt", "a/model.pth", "last.ckpt", "arrays.npz", "model.keras"}) {
    EXPECT_EQ(Why(name, ""), "it has 0 bytes: it is cut short") << name;
    EXPECT_EQ(Why(name, "PK"), "it has 2 bytes: it is cut short") << name;
    EXPECT_NE(Why(name, std::string(100, '\0')).find("begins with zeros"), std::string::npos) << name;
    EXPECT_EQ(Why(name, std::string("\x80\x02}q", 4)), "whole") << name;
  }
  EXPECT_EQ(Why("notes.txt", ""), "whole");
  EXPECT_EQ(Why("values.bin", std::string(100, '\0')), "whole");
  EXPECT_NE(Why("model.safetensors", "").find("shorter than the length"), std::string::npos);
}

TEST(FileFormatTest, WhatCannotBeReadIsTold) {
  const auto read = [](uint64_t, size_t) -> Result<std::string> { return MakeError(ErrorCode::kIo, "no such disk"); };
  EXPECT_EQ(WhyCutShort("model.pt", 100, read), "no such disk");
  EXPECT_EQ(WhyCutShort("model.safetensors", 100, read), "no such disk");
}

}  // namespace
}  // namespace cairnfs::retention
