// Calls that wait for other hosts or for a round, many at once and of callers that are killed.
#pragma once

#include <future>

#include "cluster_fixture.h"

namespace cairnfs::fs {

class ClusterWaitsTest : public ClusterTest {
 protected:
  static constexpr int kCrowd = 40;  // more than there are threads for calls of one kind

  static void SetTime(Host& host, InodeId inode, Done<void> done, const Caller& caller = {}) {
    SetAttrRequest request;
    request.mtime = Timestamp{100, 0};
    auto tell = [done = std::move(done)](const Result<meta::Attr>& attr) {
      done(attr.ok() ? Status() : Status(attr.error()));
    };
    host.fs->attributes().SetAttr(inode, request, std::move(tell), caller);
  }
  // `call(i, done)` is made kCrowd times, as requests of the kernel are. They all wait, until `end` is called, and a
  // stat that is asked for once `is_crowded` does not wait with them.
  void ExpectStatBeside(Host& at, const std::function<void(int, Done<void>)>& call,
                        const std::function<bool()>& is_crowded, const std::function<void()>& end) {
    std::atomic<int> ended{0}, failed{0};
    for (int i = 0; i < kCrowd; i++) {
      at.fs->RunBlocking([&, i] {
        call(i, [&](const Status& status) {
          if (!status.ok()) failed++;
          ended++;
        });
      });
    }
    EXPECT_TRUE(Eventually(is_crowded));
    std::atomic<bool> stat{false};
    at.fs->RunBlocking([&] { stat = at.fs->names().GetAttr({}, kRootInode).ok(); });
    EXPECT_TRUE(Eventually([&] { return stat.load(); }));
    EXPECT_EQ(ended, 0);
    end();
    EXPECT_TRUE(Eventually([&] { return stat && ended == kCrowd; }));
    EXPECT_EQ(failed, 0);
  }
  using KilledCall = std::function<void(const Caller&, Done<void>)>;
  // What a call gives whose caller is killed once it waits.
  static Status KillOnce(const std::function<bool()>& waits, const KilledCall& call) {
    std::stop_source kill;
    Caller caller;
    caller.context = Context(kill.get_token());
    auto promise = std::make_shared<std::promise<Status>>();
    auto result = promise->get_future();
    call(caller, [promise](const Status& status) { promise->set_value(status); });
    EXPECT_TRUE(Eventually(waits));
    kill.request_stop();
    if (IsReadyWithin(result, std::chrono::seconds(40))) return result.get();
    return MakeError(ErrorCode::kBusy, "it waits on");
  }
  static void ExpectInterrupted(const Status& status) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInterrupted) << status.error().message;
  }
  static Status CommitTmp(Host& at) { return at.Rename(kRootInode, "tmp", kRootInode, "step"); }
  // A file of level `local`, that host 0 has written below "scratch"; host 1 knows that by then.
  struct Scratch {
    InodeId directory, file;
  };
  Scratch MakeScratch() {
    const InodeId scratch = host(0).MakeDirectory("scratch");
    EXPECT_TRUE(host(0)
                    .fs->attributes()
                    .SetXattr({}, scratch, "user.cairnfs.level", "local", meta::Namespace::XattrMode::kSet)
                    .ok());
    auto file = host(0).Create("file", scratch);
    EXPECT_TRUE(host(0).Write(file, 0, "bytes").ok());
    EXPECT_TRUE(host(0).Fsync(file).ok());
    EXPECT_TRUE(host(0).CloseFile(file).ok());
    EXPECT_TRUE(Eventually([&] { return *host(1).Durability(file.attr.inode) == "local"; }));
    return {scratch, file.attr.inode};
  }
  // Of the file, to where copies are promised.
  static void Move(Host& at, const Scratch& scratch, const Caller& caller, Done<void> done) {
    at.fs->names().Rename({scratch.directory, "file", kRootInode, "moved", meta::RenameMode::kReplace}, caller,
                          std::move(done));
  }
  static void Link(Host& at, InodeId file, const std::string& name, const Caller& caller, const Done<void>& done) {
    auto tell = [done](const Result<meta::Attr>& attr) { done(attr.ok() ? Status() : Status(attr.error())); };
    at.fs->names().Link(file, kRootInode, name, std::move(tell), caller);
  }
};

}  // namespace cairnfs::fs
