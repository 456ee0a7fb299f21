// Set-id bits and capabilities of a file that another host has open: docs/decisions/set-id.md, "Several hosts".
#include "cluster_fixture.h"
#include "fs/attributes.h"
#include "fs/names.h"

namespace cairnfs::fs {
namespace {

constexpr char kFileCapability[] = "security.capability";

class ClusterSetIdTest : public ClusterTest {
 protected:
  void SetUp() override {
    ClusterTest::SetUp();
    options_.read_only = true;  // so no record of commits is looked at, which would count as a round trip
    MakeHosts(2);
    tool_ = there().Create("tool");
    ASSERT_TRUE(WriteAsStranger("old").ok());
    ASSERT_TRUE(there().Fsync(tool_).ok());  // it has been seen to have no bits
  }
  Host& here() { return host(0); }
  // Has the file open all along.
  Host& there() { return host(1); }
  static Caller Stranger() {
    Caller caller;
    caller.uid = caller.gid = 12345;
    return caller;
  }
  Status WriteAsStranger(std::string_view bytes) {
    FileSystem::WriteRequest request = there().RequestOf(tool_, 0, bytes);
    request.kill_suid_sgid = true;
    request.caller = Stranger();
    return there().Send(std::move(request));
  }
  Status Chmod(Host& by, uint32_t mode) {
    SetAttrRequest request;
    request.mode = mode;
    auto set = by.SetAttr(tool_.attr.inode, request);
    return set.ok() ? Status() : Status(set.error());
  }
  Status GiveCapability(Host& by) {
    return Host::Await<void>([&](Done<void> done) {
      by.fs->attributes().WhenItMayBeSet(tool_.attr.inode, kFileCapability, {}, [&by, this, done](const Status& may) {
        constexpr auto kSet = meta::Namespace::XattrMode::kSet;
        done(may.ok() ? by.fs->attributes().SetXattr({}, tool_.attr.inode, kFileCapability, "caps", kSet) : may);
      });
    });
  }
  Status Give(Host& by) {
    CAIRNFS_RETURN_IF_ERROR(Chmod(by, 06755));
    return GiveCapability(by);
  }
  uint32_t ModeOn(Host& at) { return at.fs->names().GetAttr({}, tool_.attr.inode)->mode & 07777; }
  bool HasCapabilityOn(Host& at) {
    return Host::Await<std::string>([&](Done<std::string> done) {
             at.fs->attributes().GetXattr(tool_.attr.inode, kFileCapability, std::move(done));
           })
        .ok();
  }
  void ExpectNothingLeft() {
    for (Host* each : {&here(), &there()}) {
      EXPECT_EQ(ModeOn(*each), 0755U) << each->name();
      EXPECT_FALSE(HasCapabilityOn(*each)) << each->name();
    }
  }

  FileSystem::Created tool_;
};

TEST_F(ClusterSetIdTest, WhatAStrangerWritesAfterThemIsPublishedWithoutThem) {
  ASSERT_TRUE(Give(here()).ok());
  ASSERT_TRUE(WriteAsStranger("bad").ok());
  ASSERT_TRUE(there().CloseFile(tool_).ok());
  ExpectNothingLeft();
  EXPECT_EQ(here().Cat("tool"), "bad");
}

TEST_F(ClusterSetIdTest, SoIsWhatWasWrittenBeforeThem) {
  ASSERT_TRUE(WriteAsStranger("bad").ok());
  ASSERT_TRUE(Give(here()).ok());
  // The host of the writer shows its own bytes already.
  EXPECT_EQ(ModeOn(there()), 0755U);
  EXPECT_FALSE(HasCapabilityOn(there()));
  EXPECT_EQ(ModeOn(here()), 06755U);
  EXPECT_EQ(here().Cat("tool"), "old");
  ASSERT_TRUE(there().CloseFile(tool_).ok());
  ExpectNothingLeft();
  EXPECT_EQ(here().Cat("tool"), "bad");
}

// Between the read of the record that the publish is based on and its commit.
TEST_F(ClusterSetIdTest, BitsThatComeWhileItIsPublishedGo) {
  ASSERT_TRUE(WriteAsStranger("bad").ok());
  there().chunks->before_sync = [&] { ASSERT_TRUE(Give(here()).ok()); };
  ASSERT_TRUE(there().CloseFile(tool_).ok());
  ExpectNothingLeft();
}

TEST_F(ClusterSetIdTest, SoDoOtherChangesOfTheContent) {
  const FileSystem::Created source = there().Create("source");
  ASSERT_TRUE(there().Write(source, 0, "copied").ok());
  ASSERT_TRUE(there().Fsync(source).ok());
  const std::vector<std::function<void()>> changes = {
      [&] {
        SetAttrRequest request;
        request.size = 1;
        request.handle = tool_.handle;
        request.kill_suid_sgid = true;
        auto set = Host::Await<meta::Attr>([&](Done<meta::Attr> done) {
          there().fs->attributes().SetAttr(tool_.attr.inode, request, std::move(done), Stranger());
        });
        EXPECT_TRUE(set.ok());
      },
      [&] {
        FallocateRequest request{.offset = 0, .length = 2, .keep_size = true, .punch_hole = true};
        EXPECT_TRUE(Host::Await<void>([&](Done<void> done) {
                      there().fs->writer().Fallocate(tool_.handle, request, std::move(done), Stranger());
                    }).ok());
      },
      [&] {
        EXPECT_TRUE(
            Host::Await<size_t>([&](Done<size_t> done) {
              there().fs->writer().CopyRange({source.handle, 0, tool_.handle, 0, 6}, std::move(done), Stranger());
            }).ok());
      },
      [&] {
        FileSystem::WriteRequest request = there().RequestOf(tool_, 0, "mapped");
        request.from_page_cache = true;
        EXPECT_TRUE(there().Send(std::move(request)).ok());
      },
      [&] {
        const OpenFlags flags{.write = true, .truncate = true, .kills_set_id = true};
        auto opened = there().OpenInode(tool_.attr.inode, flags, Stranger());
        ASSERT_TRUE(opened.ok());
        there().fs->open_files().Release(*opened);
      }};
  for (size_t i = 0; i < changes.size(); i++) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(Give(here()).ok());
    changes[i]();
    ASSERT_TRUE(there().Fsync(tool_).ok());
    ExpectNothingLeft();
  }
}

TEST_F(ClusterSetIdTest, RootsBytesLeaveTheBitsAndNoCapability) {
  ASSERT_TRUE(there().Fsync(tool_).ok());
  ASSERT_TRUE(there().Write(tool_, 0, "new").ok());
  ASSERT_TRUE(Give(here()).ok());
  ASSERT_TRUE(there().CloseFile(tool_).ok());
  EXPECT_EQ(ModeOn(here()), 06755U);
  EXPECT_FALSE(HasCapabilityOn(here()));
}

// As `cp -p` gives them, before the close.
TEST_F(ClusterSetIdTest, WhatTheSameHostGivesAfterTheBytesStays) {
  ASSERT_TRUE(WriteAsStranger("new").ok());
  ASSERT_TRUE(Give(there()).ok());
  SetAttrRequest times;
  times.mtime_now = true;
  ASSERT_TRUE(there().SetAttr(tool_.attr.inode, times).ok());
  ASSERT_TRUE(there().CloseFile(tool_).ok());
  for (Host* each : {&here(), &there()}) {
    EXPECT_EQ(ModeOn(*each), 06755U);
    EXPECT_TRUE(HasCapabilityOn(*each));
  }
  EXPECT_EQ(here().Cat("tool"), "new");
}

TEST_F(ClusterSetIdTest, AChmodOfAnotherHostIsNotUndone) {
  ASSERT_TRUE(Chmod(there(), 04755).ok());
  meta::AttrChanges closed;
  closed.mode = 0700;
  there().gate->before_commit = [&] { ASSERT_TRUE(here().names->SetAttr({}, tool_.attr.inode, closed).ok()); };
  ASSERT_TRUE(WriteAsStranger("new").ok());
  EXPECT_EQ(ModeOn(here()), 0700U);
}

TEST_F(ClusterSetIdTest, ItCostsNoRoundTripWhereNothingCameBetween) {
  auto trips_of = [&](bool kills) {
    const FileSystem::Created file = there().Create(kills ? "stranger's" : "root's");
    FileSystem::WriteRequest request = there().RequestOf(file, 0, "bytes");
    request.kill_suid_sgid = kills;
    EXPECT_TRUE(there().Send(std::move(request)).ok());
    SetAttrRequest changes;  // as rsync makes them, before the close
    changes.mode = 0640;
    changes.atime_now = true;
    EXPECT_TRUE(there().SetAttr(file.attr.inode, changes).ok());
    const uint64_t before = there().gate->trips;
    EXPECT_TRUE(there().CloseFile(file).ok());
    return there().gate->trips - before;
  };
  EXPECT_EQ(trips_of(true), trips_of(false));
}

}  // namespace
}  // namespace cairnfs::fs
