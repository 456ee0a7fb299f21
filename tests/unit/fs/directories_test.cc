// Listings: complete, and the cookies that a reader holds stay true while names come and go.
#include "fs/directories.h"

#include <gtest/gtest.h>

#include <map>

#include "fixture.h"
#include "fs/names.h"

namespace cairnfs::fs {
namespace {

class DirectoriesTest : public testing::Test {
 protected:
  void Make(const std::string& name) {
    auto made = world_.fs->names().MakeNode({}, kRootInode, name, WithMode(S_IFREG | 0644));
    ASSERT_TRUE(made.ok());
    inodes_[name] = made->inode;
  }
  std::shared_ptr<const DirectoryListing> Read(HandleId handle, uint64_t offset) {
    auto listing = world_.fs->directories().Read({}, handle, kRootInode, offset);
    EXPECT_TRUE(listing.ok());
    return *listing;
  }
  static std::vector<std::string> Names(const DirectoryListing& listing) {
    std::vector<std::string> names;
    for (uint64_t at = 0; at < listing.size(); at = listing.At(at).next_offset) names.push_back(listing.At(at).name);
    return names;
  }

  World world_;
  std::map<std::string, InodeId> inodes_;
};

TEST_F(DirectoriesTest, ListsEveryName) {
  std::vector<std::string> expected = {".", ".."};
  for (int i = 10'000; i < 19'000; ++i) Make("name-" + std::to_string(i));
  Make(std::string(255, 'z'));
  for (const auto& [name, inode] : inodes_) expected.push_back(name);
  const auto handle = world_.fs->directories().Open({}, kRootInode);
  ASSERT_TRUE(handle.ok());
  const auto listing = Read(*handle, 0);
  EXPECT_EQ(Names(*listing), expected);
  for (uint64_t at = 2; at < listing->size(); ++at) {
    EXPECT_EQ(listing->At(at).inode, inodes_[listing->At(at).name]);
    EXPECT_EQ(listing->At(at).type, static_cast<uint32_t>(S_IFREG));
  }
  EXPECT_EQ(listing->At(0).inode, kRootInode);
  EXPECT_EQ(listing->At(1).inode, kRootInode);
  world_.fs->directories().Release(*handle);
}

TEST_F(DirectoriesTest, AListingStaysAsItIsUntilItIsReadFromItsBeginning) {
  for (const char* name : {"a", "b", "c"}) Make(name);
  const auto handle = world_.fs->directories().Open({}, kRootInode);
  ASSERT_TRUE(handle.ok());
  EXPECT_EQ(Names(*Read(*handle, 0)), (std::vector<std::string>{".", "..", "a", "b", "c"}));
  ASSERT_TRUE(world_.fs->names().Unlink({}, kRootInode, "a").ok());
  Make("d");
  EXPECT_STREQ(Read(*handle, 4)->At(4).name, "c") << "the entry that the reader has not come to yet";
  EXPECT_EQ(Read(*handle, 5)->size(), 5u);
  EXPECT_EQ(Names(*Read(*handle, 0)), (std::vector<std::string>{".", "..", "b", "c", "d"}));
  world_.fs->directories().Release(*handle);
  EXPECT_EQ(world_.fs->directories().Read({}, *handle, kRootInode, 0).error().code, ErrorCode::kStale);
}

TEST_F(DirectoriesTest, DotsFindAnyInodeAndWhatItLiesIn) {
  auto folder = world_.fs->names().MakeNode({}, kRootInode, "folder", WithMode(S_IFDIR | 0755));
  ASSERT_TRUE(folder.ok());
  auto inner = world_.fs->names().MakeNode({}, folder->inode, "inner", WithMode(S_IFDIR | 0755));
  auto file = world_.fs->names().MakeNode({}, folder->inode, "file", WithMode(S_IFREG | 0644));
  ASSERT_TRUE(inner.ok() && file.ok());
  world_.Reopen();  // nothing is looked up any more
  auto found = world_.fs->names().Lookup({}, file->inode, ".");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->inode, file->inode);
  EXPECT_EQ(world_.fs->names().Lookup({}, inner->inode, "..")->inode, folder->inode);
  EXPECT_EQ(world_.fs->names().Lookup({}, folder->inode, "..")->inode, kRootInode);
  EXPECT_EQ(world_.fs->names().Lookup({}, file->inode, "..").error().code, ErrorCode::kNotDirectory);
  for (uint64_t no_inode : {uint64_t{0}, file->inode.value + 1000, UINT64_MAX}) {
    EXPECT_EQ(world_.fs->names().Lookup({}, InodeId{no_inode}, ".").error().code, ErrorCode::kNotFound) << no_inode;
    EXPECT_EQ(world_.fs->names().Lookup({}, InodeId{no_inode}, "..").error().code, ErrorCode::kNotFound) << no_inode;
  }
  // Looked up, it stays without a name until it is forgotten, and is not found anew.
  ASSERT_TRUE(world_.fs->names().Unlink({}, folder->inode, "file").ok());
  EXPECT_TRUE(world_.fs->names().GetAttr({}, file->inode).ok());
  EXPECT_EQ(world_.fs->names().Lookup({}, file->inode, ".").error().code, ErrorCode::kNotFound);
  world_.fs->names().Forget(file->inode, 1);
  EXPECT_EQ(world_.fs->names().Lookup({}, file->inode, ".").error().code, ErrorCode::kNotFound);
}

TEST_F(DirectoriesTest, WhatIsNoDirectoryIsNotListed) {
  Make("file");
  EXPECT_EQ(world_.fs->directories().Open({}, inodes_["file"]).error().code, ErrorCode::kNotDirectory);
}

}  // namespace
}  // namespace cairnfs::fs
