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

// An entry of the directory, with this name and comment.
std::string EntryOf(const std::string& name, const std::string& comment = {}) {
  Encoder entry;
  entry.Text(kDirectoryMagic).Text(std::string(24, 'e')).U16(static_cast<uint16_t>(name.size())).U16(0);
  entry.U16(static_cast<uint16_t>(comment.size())).Text(std::string(12, 'e')).Text(name).Text(comment);
  return entry.Take();
}

struct Zip {
  std::string content = std::string(100, 'x');
  std::string comment = {};
  bool is_zip64 = false;
  std::string directory = EntryOf("a", "said of it") + EntryOf("") + EntryOf("data.pkl");

  // No reader looks at what an entry says beside its length.
  std::string Bytes() const {
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

TEST(FileFormatTest, ADirectoryWithAHoleIsNone) {
  std::string many;
  for (int i = 0; i < 100; ++i) many += EntryOf("entry-" + std::to_string(i));
  const Zip zip{.directory = many};
  EXPECT_EQ(Why("model.pt", zip.Bytes()), "whole");
  for (const size_t at : {size_t{60}, size_t{1000}, many.size() - 200}) {
    std::string bytes = zip.Bytes();
    std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(bytes.find(kDirectoryMagic) + at), 200, '\0');
    EXPECT_NE(Why("model.pt", bytes).find("where its directory is to be"), std::string::npos) << at;
  }
  // An entry that is longer than what is left, and a piece of one.
  for (const std::string& end : {EntryOf("name").substr(0, 48), EntryOf("name").substr(0, 30), std::string("PK")}) {
    EXPECT_NE(Why("model.pt", Zip{.directory = many + end}.Bytes()), "whole") << end.size();
  }
}

// As torch.distributed writes them: each zip file tells its places from its own begin.
TEST(FileFormatTest, ASeriesOfZipFilesEndsWithAWholeOne) {
  for (const bool is_zip64 : {false, true}) {
    const std::string first = Zip{.is_zip64 = is_zip64}.Bytes();
    const std::string last = Zip{.content = std::string(100'000, 'y'), .is_zip64 = is_zip64}.Bytes();
    const std::string whole = first + first + last;
    EXPECT_EQ(Why("__0_0.distcp", first), "whole");
    EXPECT_EQ(Why("a/__0_0.distcp", whole), "whole");
    EXPECT_NE(Why("model.pt", whole), "whole") << "a zip file is one alone there";
    for (size_t size = 4; size < whole.size(); size += size < whole.size() - 400 ? 97 : 1) {
      const bool is_between = size == first.size() || size == 2 * first.size();
      EXPECT_EQ(Why("__0_0.distcp", whole.substr(0, size)) == "whole", is_between) << size;
    }
    std::string damaged = whole;
    damaged[2 * first.size()] = '\0';
    EXPECT_NE(Why("__0_0.distcp", damaged), "whole");
  }
  EXPECT_EQ(Why("__1_0.distcp", ""), "whole") << "of a rank that has nothing to write";
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

TEST(FileFormatTest, ALongDirectoryIsReadInPieces) {
  // Of entries without end, of which 100 MB are looked at.
  constexpr uint64_t kSize = uint64_t{1} << 40;
  const std::string entry = EntryOf("", std::string(954, 'c'));
  std::string entries;
  while (entries.size() < 2 << 20) entries += entry;
  Encoder end;
  const uint64_t directory_bytes = (kSize - 98) / entry.size() * entry.size(), begin = kSize - 98 - directory_bytes;
  end.Text(kZip64EndMagic).U64(44).U32(0).U64(0).U64(1).U64(1).U64(directory_bytes).U64(begin);
  end.Text(kLocatorMagic).U32(0).U64(kSize - 98).U32(1);
  const std::string tail = end.Take() + EndRecord(0xffffffff, 0xffffffff, "");
  ASSERT_EQ(tail.size(), 98u);
  uint64_t bytes_read = 0;
  const auto read = [&](uint64_t offset, size_t size) -> Result<std::string> {
    EXPECT_LE(size, 1u << 20);
    bytes_read += size;
    if (offset == 0) return std::string(kFileMagic);
    if (offset + size == kSize) return std::string(size - tail.size(), 'x') + tail;
    return entries.substr((offset - begin) % entry.size(), size);
  };
  EXPECT_FALSE(WhyCutShort("model.pt", kSize, read));
  EXPECT_GT(bytes_read, 90'000'000u);
  EXPECT_LT(bytes_read, 110'000'000u);
}

TEST(FileFormatTest, ASavedFileHasABeginning) {
  for (const std::string name :
       {"model.pt", "a/model.pth", "last.ckpt", "arrays.npz", "model.keras", "mean.npy", "a/pytorch_model.bin",
        "pytorch_model-00001-of-00003.bin", "model.safetensors.index.json"}) {
    EXPECT_EQ(Why(name, ""), "it has 0 bytes: it is cut short") << name;
    EXPECT_EQ(Why(name, "PK"), "it has 2 bytes: it is cut short") << name;
    EXPECT_NE(Why(name, std::string(100, '\0')).find("begins with zeros"), std::string::npos) << name;
    EXPECT_EQ(Why(name, std::string("\x80\x02}q", 4)), "whole") << name;
  }
  EXPECT_EQ(Why("notes.txt", ""), "whole");
  EXPECT_EQ(Why("values.bin", std::string(100, '\0')), "whole");
  EXPECT_EQ(Why("pytorch_model/values.bin", ""), "whole");
  for (const std::string name : {"model.h5", "a/model.hdf5", "opt_state.msgpack"}) {
    EXPECT_EQ(Why(name, ""), "it has 0 bytes: it is cut short") << name;
    EXPECT_EQ(Why(name, "\x80"), "whole") << "an empty map";
    EXPECT_EQ(Why(name, std::string(100, '\0')), "whole") << "a user block";
  }
  EXPECT_NE(Why("model.safetensors", "").find("shorter than the length"), std::string::npos);
}

TEST(FileFormatTest, WhatCannotBeReadIsTold) {
  const auto read = [](uint64_t, size_t) -> Result<std::string> { return MakeError(ErrorCode::kIo, "no such disk"); };
  EXPECT_EQ(WhyCutShort("model.pt", 100, read), "no such disk");
  EXPECT_EQ(WhyCutShort("model.safetensors", 100, read), "no such disk");
}

}  // namespace
}  // namespace cairnfs::retention
