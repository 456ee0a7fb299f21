// Many threads, as several hosts: no cycles, no lost names, right link counts, times that do not run backwards.
#include <random>
#include <set>
#include <thread>

#include "fixture.h"

namespace cairnfs::meta {
namespace {

constexpr int kThreads = 4;
constexpr int kRounds = 3000;

class ConcurrencyTest : public NamespaceTest {
 protected:
  // Runs `body` on each thread with a namespace of its own and a seed.
  void RunThreads(const std::function<void(Namespace&, int thread, std::minstd_rand&)>& body) {
    const unsigned seed = std::random_device{}();
    std::cout << "seed " << seed << "\n";
    std::vector<std::unique_ptr<Namespace>> hosts;
    for (int i = 0; i < kThreads; i++) {
      hosts.push_back(MakeNamespace());
      // Takes a batch of inode numbers: two namespaces must not do that at the same time.
      CreateParams params;
      params.mode = S_IFREG | 0644;
      ASSERT_TRUE(hosts.back()->Create({}, kRootInode, "warm", params).ok());
      auto removed = hosts.back()->Unlink({}, kRootInode, "warm");
      ASSERT_TRUE(removed.ok());
      EXPECT_OK(hosts.back()->RemoveOrphans({}, {removed->inode}));
    }
    commits_before_ = store_->commits;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++) {
      threads.emplace_back([&, i] {
        std::minstd_rand random(seed + static_cast<unsigned>(i));
        body(*hosts[static_cast<size_t>(i)], i, random);
      });
    }
    for (auto& thread : threads) thread.join();
  }
  uint64_t commits_before_ = 0;  // when the threads started

  void CollectDirectories(InodeId directory, std::set<InodeId>& seen, int depth) {
    ASSERT_LT(depth, 100);
    ASSERT_TRUE(seen.insert(directory).second) << "reached twice";
    auto entries = names().ReadDirectory({}, directory, "", 1 << 20);
    ASSERT_TRUE(entries.ok());
    for (const auto& entry : *entries) {
      if (entry.type != S_IFDIR) continue;
      EXPECT_EQ(*names().ParentOf({}, entry.inode), directory);
      CollectDirectories(entry.inode, seen, depth + 1);
    }
  }
};

TEST_F(ConcurrencyTest, MovesOfDirectoriesMakeNoCycle) {
  std::vector<InodeId> directories{kRootInode};
  for (int i = 0; i < 8; i++) directories.push_back(MakeDirectory(kRootInode, "d" + std::to_string(i)));
  std::atomic<int> moved{0};
  RunThreads([&](Namespace& host, int, std::minstd_rand& random) {
    for (int i = 0; i < kRounds; i++) {
      // Each directory keeps its own name wherever it is, so its present parent is all there is to find.
      const size_t which = 1 + random() % 8;
      const std::string name = "d" + std::to_string(which - 1);
      auto parent = host.ParentOf({}, directories[which]);
      ASSERT_TRUE(parent.ok());
      const RenameParams params{*parent, name, directories[random() % 9], name, RenameMode::kReplace};
      auto result = host.Rename({}, params);
      if (result.ok())
        moved++;
      else
        EXPECT_TRUE(result.error().code == ErrorCode::kNotFound || result.error().code == ErrorCode::kInvalidArgument ||
                    result.error().code == ErrorCode::kBusy)
            << result.error().message;
    }
  });
  EXPECT_GT(moved, 100);
  std::set<InodeId> seen;
  CollectDirectories(kRootInode, seen, 0);
  EXPECT_EQ(seen.size(), directories.size()) << "all of them are still below the root";
}

TEST_F(ConcurrencyTest, ExchangesOfDirectoriesMakeNoCycle) {
  // Slots hold directories, and directories hold slots: exchanges move whole subtrees.
  std::vector<InodeId> parents{kRootInode};
  std::vector<std::pair<InodeId, std::string>> slots;
  for (int i = 0; i < 6; i++) {
    const InodeId parent = parents[static_cast<size_t>(i) / 2];
    const std::string name = "s" + std::to_string(i);
    parents.push_back(MakeDirectory(parent, name));
    slots.emplace_back(parent, name);
  }
  std::atomic<int> exchanged{0};
  RunThreads([&](Namespace& host, int, std::minstd_rand& random) {
    for (int i = 0; i < kRounds; i++) {
      const auto& from = slots[random() % slots.size()];
      const auto& to = slots[random() % slots.size()];
      auto result = host.Rename({}, {from.first, from.second, to.first, to.second, RenameMode::kExchange});
      if (result.ok() && !result->unchanged) exchanged++;
      if (!result.ok()) {
        EXPECT_EQ(Outcome(result), ErrorCodeName(ErrorCode::kInvalidArgument));
      }
    }
  });
  EXPECT_GT(exchanged, 100);
  std::set<InodeId> seen;
  CollectDirectories(kRootInode, seen, 0);
  EXPECT_EQ(seen.size(), parents.size());
}

TEST_F(ConcurrencyTest, CreatesInOneDirectory) {
  RunThreads([&](Namespace& host, int thread, std::minstd_rand&) {
    for (int i = 0; i < kRounds; i++) {
      CreateParams params;
      params.mode = S_IFREG | 0644;
      auto created = host.Create({}, kRootInode, std::to_string(thread) + "-" + std::to_string(i), params);
      ASSERT_TRUE(created.ok()) << created.error().message;
    }
  });
  EXPECT_EQ(store_->commits - commits_before_, uint64_t{kThreads * kRounds}) << "none had to be tried again";
  auto entries = names().ReadDirectory({}, kRootInode, "", 1 << 20);
  ASSERT_TRUE(entries.ok());
  EXPECT_EQ(entries->size(), size_t{kThreads * kRounds});
  std::set<InodeId> inodes;
  for (const auto& entry : *entries) inodes.insert(entry.inode);
  EXPECT_EQ(inodes.size(), entries->size()) << "every file has a number of its own";
}

TEST_F(ConcurrencyTest, TimesOfADirectoryDoNotRunBackwards) {
  std::atomic<int> running{kThreads};
  Namespace& host = names();
  std::thread watcher([&] {
    Timestamp last;
    while (running > 0) {
      auto attr = host.GetAttr({}, kRootInode);
      ASSERT_TRUE(attr.ok());
      EXPECT_GE(attr->mtime, last);
      EXPECT_GE(attr->ctime, attr->mtime);
      last = attr->mtime;
    }
  });
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; thread++) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kRounds; i++) {
        CreateParams params;
        params.mode = S_IFREG | 0644;
        const std::string name = std::to_string(thread) + "-" + std::to_string(i);
        EXPECT_TRUE(host.Create({}, kRootInode, name, params).ok());
        if (i % 2 == 0) {
          EXPECT_TRUE(host.Unlink({}, kRootInode, name).ok());
        }
      }
      running--;
    });
  }
  for (auto& thread : threads) thread.join();
  watcher.join();
}

TEST_F(ConcurrencyTest, LinksAreCountedRightly) {
  const InodeId file = MakeFile(kRootInode, "file");
  std::atomic<int> links{1};
  RunThreads([&](Namespace& host, int thread, std::minstd_rand& random) {
    std::vector<std::string> mine;
    for (int i = 0; i < kRounds; i++) {
      if (mine.empty() || random() % 2 == 0) {
        mine.push_back(std::to_string(thread) + "-" + std::to_string(i));
        ASSERT_TRUE(host.Link({}, file, kRootInode, mine.back()).ok());
        links++;
      } else {
        ASSERT_TRUE(host.Unlink({}, kRootInode, mine.back()).ok());
        mine.pop_back();
        links--;
      }
    }
  });
  EXPECT_EQ(AttrNow(file).nlink, static_cast<uint32_t>(links));
  EXPECT_EQ(Names(kRootInode).size(), static_cast<size_t>(links));
}

TEST_F(ConcurrencyTest, MakingAndRemovingDirectories) {
  RunThreads([&](Namespace& host, int thread, std::minstd_rand& random) {
    const std::string file_name = "f" + std::to_string(thread);
    CreateParams directory, file;
    directory.mode = S_IFDIR | 0755;
    file.mode = S_IFREG | 0644;
    for (int i = 0; i < kRounds; i++) {
      const std::string name = "d" + std::to_string(random() % 2);
      (void)host.Create({}, kRootInode, name, directory);
      auto found = host.Lookup({}, kRootInode, name);
      if (found.ok() && host.Create({}, found->inode, file_name, file).ok() && random() % 4 != 0) {
        EXPECT_OK(host.Unlink({}, found->inode, file_name));
      }
      (void)host.Rmdir({}, kRootInode, name);
    }
  });
  // Every name and every T record belongs to a directory that is still there.
  for (std::string_view prefix : {"E", "T"}) {
    auto range = local_->Range({}, prefix, kv::PrefixEnd(prefix), 0);
    ASSERT_TRUE(range.ok());
    for (const auto& entry : range->entries) {
      auto directory = InodeOfKey("I" + entry.key.substr(1, 8));
      ASSERT_TRUE(directory);
      auto attr = names().GetAttr({}, *directory);
      ASSERT_TRUE(attr.ok()) << attr.error().message;
      if (prefix == "E") {
        EXPECT_EQ(attr->nlink, 1u);
      }
    }
  }
}

}  // namespace
}  // namespace cairnfs::meta
