// The specification of a tree: hand-made histories that are legal and that are not; and random ones, carried out on a
// real directory and then spread out in time, which must be accepted, and refused once a result was changed.
#include "tree_specification.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <map>

#include "client_operations.h"
#include "random.h"

namespace cairnfs::testing {
namespace {

TreeOperation Operation(TreeAct act, const std::string& path, int64_t begin, int64_t end, int error = 0) {
  TreeOperation operation;
  operation.act = act;
  operation.path = path;
  operation.mode = act == TreeAct::kMkdir ? 0755 : 0644;
  operation.interval = {begin, end};
  operation.result.emplace();
  operation.result->error = error;
  return operation;
}

TreeOperation Mkdir(const std::string& path, int64_t begin, int64_t end, int error = 0) {
  return Operation(TreeAct::kMkdir, path, begin, end, error);
}
TreeOperation Create(const std::string& path, int64_t begin, int64_t end, int error = 0) {
  return Operation(TreeAct::kCreate, path, begin, end, error);
}
TreeOperation Unlink(const std::string& path, int64_t begin, int64_t end, int error = 0) {
  return Operation(TreeAct::kUnlink, path, begin, end, error);
}
TreeOperation Rename(const std::string& path, const std::string& target, int64_t begin, int64_t end, int error = 0,
                     unsigned flags = 0) {
  TreeOperation operation = Operation(TreeAct::kRename, path, begin, end, error);
  operation.target = target;
  operation.flags = flags;
  return operation;
}
TreeOperation Link(const std::string& path, const std::string& target, int64_t begin, int64_t end, int error = 0) {
  TreeOperation operation = Operation(TreeAct::kLink, path, begin, end, error);
  operation.target = target;
  return operation;
}
TreeOperation Stat(const std::string& path, int64_t inode, int64_t links, int64_t slots, int64_t begin, int64_t end) {
  TreeOperation operation = Operation(TreeAct::kStat, path, begin, end);
  operation.result->inode = inode;
  operation.result->links = links;
  operation.result->slots = slots;
  operation.result->mode = 0644;
  return operation;
}
TreeOperation Missing(const std::string& path, int64_t begin, int64_t end) {
  return Operation(TreeAct::kStat, path, begin, end, ENOENT);
}
TreeOperation Names(const std::string& path, std::vector<std::string> names, int64_t begin, int64_t end) {
  TreeOperation operation = Operation(TreeAct::kReaddir, path, begin, end);
  operation.result->names = std::move(names);
  return operation;
}
TreeOperation Write(const std::string& path, int64_t slot, int64_t slots, int64_t token, int64_t begin, int64_t end) {
  TreeOperation operation = Operation(TreeAct::kWrite, path, begin, end);
  operation.first_slot = slot;
  operation.slots = slots;
  operation.token = token;
  return operation;
}
TreeOperation Read(const std::string& path, std::vector<int64_t> tokens, int64_t begin, int64_t end) {
  TreeOperation operation = Operation(TreeAct::kRead, path, begin, end);
  operation.result->tokens = std::move(tokens);
  return operation;
}
TreeOperation Truncate(const std::string& path, int64_t slots, int64_t begin, int64_t end) {
  TreeOperation operation = Operation(TreeAct::kTruncate, path, begin, end);
  operation.slots = slots;
  return operation;
}
// Its answer never came. It may have taken effect up to `end`, or not at all.
TreeOperation Unknown(TreeOperation operation, int64_t end = kNever) {
  operation.interval.end = end;
  operation.result.reset();
  return operation;
}

SearchReport Check(const std::vector<TreeOperation>& operations, std::string* explanation = nullptr) {
  TreeSpecification specification(operations);
  SearchReport report = CheckLinearizability(specification, specification.calls());
  EXPECT_NE(report.verdict, Linearizability::kUnknown);
  if (explanation != nullptr) *explanation = Explain(specification, specification.calls(), report);
  return report;
}

bool IsLegal(const std::vector<TreeOperation>& operations) {
  return Check(operations).verdict == Linearizability::kYes;
}

TEST(TreeSpecificationTest, ExclusiveCreateSucceedsOnce) {
  EXPECT_TRUE(IsLegal({Create("a", 0, 10), Create("a", 1, 9, EEXIST)}));
  EXPECT_FALSE(IsLegal({Create("a", 0, 10), Create("a", 1, 9)}));
  EXPECT_FALSE(IsLegal({Create("a", 0, 10, EEXIST), Create("a", 1, 9, EEXIST)}));
  EXPECT_TRUE(IsLegal({Create("a", 0, 10), Unlink("a", 1, 9), Create("a", 2, 8)}));
  EXPECT_FALSE(IsLegal({Mkdir("a", 0, 1), Mkdir("a", 2, 3)}));
}

TEST(TreeSpecificationTest, NamesAreSeenOnceTheCallReturned) {
  EXPECT_FALSE(IsLegal({Create("a", 0, 1), Missing("a", 2, 3)}));
  EXPECT_FALSE(IsLegal({Create("a", 0, 1), Unlink("a", 2, 3), Names("", {"a"}, 4, 5)}));
  EXPECT_TRUE(IsLegal({Create("a", 0, 1), Unlink("a", 2, 5), Names("", {"a"}, 4, 5)}));
  EXPECT_FALSE(IsLegal({Create("a", 0, 1), Create("b", 2, 3), Names("", {"b"}, 2, 5)}));
}

TEST(TreeSpecificationTest, ARenameIsNeverSeenHalf) {
  std::vector<TreeOperation> renamed = {Create("a", 0, 1), Rename("a", "b", 2, 9)};
  auto with = [&renamed](std::vector<TreeOperation> more) {
    std::vector<TreeOperation> all = renamed;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  EXPECT_TRUE(IsLegal(with({Names("", {"a"}, 3, 4), Names("", {"b"}, 5, 6)})));
  EXPECT_FALSE(IsLegal(with({Names("", {}, 3, 4)})));
  EXPECT_FALSE(IsLegal(with({Names("", {"a", "b"}, 3, 4)})));
  EXPECT_FALSE(IsLegal(with({Missing("a", 3, 4), Missing("b", 5, 6)})));
  EXPECT_FALSE(IsLegal(with({Stat("b", 0, 1, 0, 3, 4), Stat("a", 0, 1, 0, 5, 6)})));
}

TEST(TreeSpecificationTest, RenameTakesFlags) {
  std::vector<TreeOperation> two = {Create("a", 0, 1), Create("b", 2, 3)};
  two[0].result->inode = 7;
  two[1].result->inode = 8;
  auto with = [&two](TreeOperation rename, TreeOperation look) {
    return std::vector<TreeOperation>{two[0], two[1], std::move(rename), std::move(look)};
  };
  EXPECT_TRUE(IsLegal(with(Rename("a", "b", 4, 5, EEXIST, RENAME_NOREPLACE), Stat("b", 8, 1, 0, 6, 7))));
  EXPECT_FALSE(IsLegal(with(Rename("a", "b", 4, 5, 0, RENAME_NOREPLACE), Stat("b", 7, 1, 0, 6, 7))));
  EXPECT_TRUE(IsLegal(with(Rename("a", "b", 4, 5, 0, RENAME_EXCHANGE), Stat("b", 7, 1, 0, 6, 7))));
  EXPECT_FALSE(IsLegal(with(Rename("a", "b", 4, 5, 0, RENAME_EXCHANGE), Missing("a", 6, 7))));
  EXPECT_FALSE(IsLegal(with(Rename("a", "c", 4, 5, 0, RENAME_EXCHANGE), Missing("a", 6, 7))));
  EXPECT_TRUE(IsLegal(with(Rename("a", "b", 4, 5), Missing("a", 6, 7))));
  EXPECT_FALSE(IsLegal(with(Rename("a", "b", 4, 5), Stat("b", 8, 1, 0, 6, 7))));
}

TEST(TreeSpecificationTest, OfTwoRenamesOfOneNameOneSucceeds) {
  EXPECT_TRUE(IsLegal({Create("a", 0, 1), Rename("a", "b", 2, 9), Rename("a", "c", 3, 8, ENOENT)}));
  EXPECT_FALSE(IsLegal({Create("a", 0, 1), Rename("a", "b", 2, 9), Rename("a", "c", 3, 8)}));
}

TEST(TreeSpecificationTest, TheKernelDoesNothingWhenBothNamesLeadToOneInode) {
  EXPECT_TRUE(IsLegal({Create("a", 0, 1), Link("a", "b", 2, 3), Rename("a", "b", 4, 5), Names("", {"a", "b"}, 6, 7)}));
  EXPECT_FALSE(IsLegal({Create("a", 0, 1), Link("a", "b", 2, 3), Rename("a", "b", 4, 5), Names("", {"b"}, 6, 7)}));
  // It looked up the first name before and the second one after another host renamed it.
  EXPECT_TRUE(IsLegal({Create("a", 0, 1), Rename("a", "b", 2, 9), Rename("a", "b", 3, 8), Names("", {"b"}, 10, 11)}));
  EXPECT_FALSE(IsLegal({Create("a", 0, 1), Rename("a", "b", 2, 4), Rename("a", "b", 5, 8), Names("", {"b"}, 10, 11)}));
}

TEST(TreeSpecificationTest, DirectoriesKeepTheirRules) {
  std::vector<TreeOperation> tree = {Mkdir("d", 0, 1), Create("d/x", 2, 3)};
  auto with = [&tree](TreeOperation last) { return std::vector<TreeOperation>{tree[0], tree[1], std::move(last)}; };
  EXPECT_TRUE(IsLegal(with(Operation(TreeAct::kRmdir, "d", 4, 5, ENOTEMPTY))));
  EXPECT_FALSE(IsLegal(with(Operation(TreeAct::kRmdir, "d", 4, 5))));
  EXPECT_TRUE(IsLegal(with(Operation(TreeAct::kUnlink, "d", 4, 5, EISDIR))));
  EXPECT_TRUE(IsLegal(with(Rename("d", "d/y", 4, 5, EINVAL))));
  EXPECT_FALSE(IsLegal(with(Rename("d", "d/y", 4, 5))));
  EXPECT_TRUE(IsLegal(with(Rename("d/x", "d", 4, 5, ENOTEMPTY))));
  EXPECT_TRUE(IsLegal(with(Create("d/x/y", 4, 5, ENOTDIR))));
  EXPECT_TRUE(IsLegal({Mkdir("d", 0, 1), Operation(TreeAct::kRmdir, "d", 2, 9), Create("d/x", 3, 8, ENOENT)}));
  // A name in a directory that is gone.
  EXPECT_FALSE(IsLegal({Mkdir("d", 0, 1), Operation(TreeAct::kRmdir, "d", 2, 9), Create("d/x", 3, 8),
                        Operation(TreeAct::kRmdir, "d", 10, 11, ENOENT)}));
}

TEST(TreeSpecificationTest, ACallMayFindADirectoryThatMovesOnMeanwhile) {
  EXPECT_TRUE(IsLegal({Mkdir("d", 0, 1), Rename("d", "e", 2, 9), Create("d/x", 3, 8), Names("e", {"x"}, 10, 11)}));
  EXPECT_FALSE(IsLegal({Mkdir("d", 0, 1), Rename("d", "e", 2, 4), Create("d/x", 5, 8)}));
}

TEST(TreeSpecificationTest, LinksAreCounted) {
  std::vector<TreeOperation> linked = {Create("a", 0, 1), Link("a", "b", 2, 3)};
  auto with = [&linked](TreeOperation last) {
    return std::vector<TreeOperation>{linked[0], linked[1], std::move(last)};
  };
  EXPECT_TRUE(IsLegal(with(Stat("b", 5, 2, 0, 4, 5))));
  EXPECT_FALSE(IsLegal(with(Stat("b", 5, 1, 0, 4, 5))));
  EXPECT_TRUE(IsLegal(with(Link("a", "b", 4, 5, EEXIST))));
}

TEST(TreeSpecificationTest, InodesKeepTheirNumbers) {
  EXPECT_TRUE(IsLegal({Create("a", 0, 1), Stat("a", 5, 1, 0, 2, 3), Rename("a", "b", 4, 5), Stat("b", 5, 1, 0, 6, 7)}));
  EXPECT_FALSE(IsLegal({Create("a", 0, 1), Stat("a", 5, 1, 0, 2, 3), Stat("a", 6, 1, 0, 4, 5)}));
  EXPECT_FALSE(IsLegal({Create("a", 0, 1), Create("b", 0, 1), Stat("a", 5, 1, 0, 2, 3), Stat("b", 5, 1, 0, 4, 5)}));
}

TEST(TreeSpecificationTest, AReadAfterACloseSeesWhatWasWritten) {
  EXPECT_TRUE(IsLegal({Create("a", 0, 1), Write("a", 0, 2, 7, 2, 3), Read("a", {7, 7}, 4, 5)}));
  EXPECT_FALSE(IsLegal({Create("a", 0, 1), Write("a", 0, 2, 7, 2, 3), Read("a", {}, 4, 5)}));
  EXPECT_FALSE(IsLegal({Create("a", 0, 1), Write("a", 0, 2, 7, 2, 9), Read("a", {7}, 4, 5)}));
  EXPECT_FALSE(IsLegal({Create("a", 0, 1), Write("a", 0, 2, 7, 2, 3), Read("a", {7, -1}, 4, 5)}));
  EXPECT_FALSE(
      IsLegal({Create("a", 0, 1), Write("a", 0, 2, 7, 2, 3), Write("a", 0, 2, 8, 4, 5), Read("a", {7, 7}, 6, 7)}));
}

TEST(TreeSpecificationTest, DisjointWritesBothStay) {
  std::vector<TreeOperation> both = {Create("a", 0, 1), Write("a", 0, 2, 7, 2, 9), Write("a", 2, 2, 8, 3, 8)};
  auto with = [&both](TreeOperation last) {
    return std::vector<TreeOperation>{both[0], both[1], both[2], std::move(last)};
  };
  EXPECT_TRUE(IsLegal(with(Read("a", {7, 7, 8, 8}, 10, 11))));
  EXPECT_FALSE(IsLegal(with(Read("a", {0, 0, 8, 8}, 10, 11))));
  EXPECT_FALSE(IsLegal(with(Read("a", {7, 7}, 10, 11))));
}

TEST(TreeSpecificationTest, TruncationCutsAndFillsWithZeros) {
  EXPECT_TRUE(IsLegal({Create("a", 0, 1), Write("a", 0, 3, 7, 2, 3), Truncate("a", 1, 4, 5), Truncate("a", 3, 6, 7),
                       Read("a", {7, 0, 0}, 8, 9)}));
  EXPECT_FALSE(IsLegal({Create("a", 0, 1), Write("a", 0, 3, 7, 2, 3), Truncate("a", 1, 4, 5), Truncate("a", 3, 6, 7),
                        Read("a", {7, 7, 7}, 8, 9)}));
}

TEST(TreeSpecificationTest, UnknownOutcomesMayBeEitherAndStayDecided) {
  TreeOperation lost = Unknown(Create("a", 0, 1));
  EXPECT_TRUE(IsLegal({lost, Missing("a", 5, 6)}));
  EXPECT_TRUE(IsLegal({lost, Missing("a", 5, 6), Stat("a", 3, 1, 0, 7, 8)}));
  EXPECT_FALSE(IsLegal({lost, Stat("a", 3, 1, 0, 5, 6), Missing("a", 7, 8)}));
  // By the end of its host's lease it must have happened, or it never will.
  EXPECT_TRUE(IsLegal({Unknown(Create("a", 0, 1), 10), Stat("a", 3, 1, 0, 11, 12)}));
  EXPECT_FALSE(IsLegal({Unknown(Create("a", 0, 1), 10), Missing("a", 11, 12), Stat("a", 3, 1, 0, 13, 14)}));
}

// Random operations, carried out one after the other on a real directory.
class RandomHistory {
 public:
  RandomHistory(uint64_t seed, const std::string& directory) : random_(seed), directory_(directory) {
    std::filesystem::create_directory(directory_);
    int64_t now = 1000;
    while (operations_.size() < 30) {
      // Names first, so that what follows finds some.
      TreeOperation operation = Make();
      if (operations_.size() < 6) {
        operation.act = random_.OneIn(3) ? TreeAct::kMkdir : TreeAct::kCreate;
        operation.path = Path();
        operation.target.clear();
      }
      operation.result = Perform(directory_, operation);
      if (operation.result->error == EOPNOTSUPP) continue;
      moments_.push_back(now);
      operation.interval = {now, now};
      operations_.push_back(operation);
      now += 10;
    }
  }

  // Each still contains its moment; at most four clients, each of which does one thing at a time.
  std::vector<TreeOperation> SpreadOut() {
    constexpr size_t kClients = 4;
    std::vector<TreeOperation> spread = operations_;
    std::vector<size_t> client(spread.size());
    std::map<size_t, std::vector<size_t>> of_client;
    for (size_t i = 0; i < spread.size(); ++i) of_client[random_.Below(kClients)].push_back(i);
    for (const auto& [number, own] : of_client) {
      int64_t free_from = 0;
      for (size_t j = 0; j < own.size(); ++j) {
        int64_t moment = moments_[own[j]];
        int64_t next = j + 1 < own.size() ? moments_[own[j + 1]] : moment + 100;
        CallInterval& interval = spread[own[j]].interval;
        interval.begin = std::max(free_from, moment - static_cast<int64_t>(random_.Below(40)));
        interval.end = std::min(next - 1, moment + static_cast<int64_t>(random_.Below(40)));
        free_from = interval.end + 1;
        spread[own[j]].client = "c" + std::to_string(number);
      }
    }
    return spread;
  }

  // One result is not what it was. Not every change can be seen: the call may have been late in its interval.
  std::vector<TreeOperation> Corrupted(std::vector<TreeOperation> operations) {
    for (;;) {
      TreeResult& result = *random_.Pick(MutableResults(operations));
      TreeResult before = result;
      Corrupt(result);
      if (IsDifferent(before, result)) return operations;
    }
  }

 private:
  static std::vector<TreeResult*> MutableResults(std::vector<TreeOperation>& operations) {
    std::vector<TreeResult*> results;
    for (TreeOperation& operation : operations) results.push_back(&*operation.result);
    return results;
  }

  static bool IsDifferent(const TreeResult& a, const TreeResult& b) {
    return a.error != b.error || a.links != b.links || a.slots != b.slots || a.mode != b.mode || a.token != b.token ||
           a.names != b.names || a.tokens != b.tokens;
  }

  void Corrupt(TreeResult& result) {
    if (result.error != 0) {
      result.error = random_.OneIn(2) ? 0 : random_.Pick(std::vector<int>{ENOENT, EEXIST, ENOTEMPTY, EINVAL});
    } else if (!result.names.empty()) {
      result.names.pop_back();
    } else if (!result.tokens.empty()) {
      result.tokens[random_.Below(result.tokens.size())] += random_.OneIn(2) ? 1 : -1;
    } else if (result.links != 0 && !random_.OneIn(3)) {
      (random_.OneIn(2) ? result.links : result.mode) += 1;
    } else if (result.token != 0) {
      result.token += 1;
    } else {
      result.error = random_.OneIn(2) ? ENOENT : EEXIST;
    }
  }

  std::string Path() {
    static const std::vector<std::string> kPaths = {"a", "b", "c", "d", "d/a", "d/b"};
    return random_.Pick(kPaths);
  }

  TreeOperation Make() {
    TreeOperation operation;
    operation.act = static_cast<TreeAct>(random_.Below(14));
    operation.path = operation.act == TreeAct::kReaddir && random_.OneIn(2) ? "" : Path();
    if (operation.act == TreeAct::kLink || operation.act == TreeAct::kRename) operation.target = Path();
    if (operation.act == TreeAct::kRename) {
      operation.flags = random_.Pick(std::vector<unsigned>{0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE});
    }
    operation.mode = operation.act == TreeAct::kMkdir ? 0755 : random_.OneIn(2) ? 0644 : 0600;
    operation.token = ++tokens_;
    operation.first_slot = static_cast<int64_t>(random_.Below(kSlots));
    operation.slots = static_cast<int64_t>(random_.Between(1, kSlots - static_cast<uint64_t>(operation.first_slot)));
    if (operation.act == TreeAct::kTruncate) operation.slots = static_cast<int64_t>(random_.Below(kSlots + 1));
    return operation;
  }

  Random random_;
  std::string directory_;
  int64_t tokens_ = 0;
  std::vector<TreeOperation> operations_;
  std::vector<int64_t> moments_;
};

TEST(TreeSpecificationTest, RandomHistoriesOfARealDirectoryAreAcceptedAndDamagedOnesRefused) {
  char pattern[] = "/tmp/cairnfs-tree-XXXXXX";
  std::filesystem::path root = mkdtemp(pattern);
  mode_t mask = umask(0);
  constexpr int kHistories = 300;
  int refused = 0, refused_in_order = 0;
  for (uint64_t seed = 0; seed < kHistories; ++seed) {
    RandomHistory history(seed, root / std::to_string(seed));
    std::vector<TreeOperation> spread = history.SpreadOut();
    std::string explanation;
    EXPECT_EQ(Check(spread, &explanation).verdict, Linearizability::kYes) << "seed " << seed << "\n" << explanation;
    if (HasFailure()) break;
    refused += !IsLegal(history.Corrupted(spread));
    // The same without any overlap: here nearly every change is one that no order explains.
    std::vector<TreeOperation> in_order = spread;
    for (size_t i = 0; i < in_order.size(); ++i) {
      in_order[i].interval = {static_cast<int64_t>(i) * 10, static_cast<int64_t>(i) * 10 + 5};
    }
    refused_in_order += !IsLegal(history.Corrupted(in_order));
  }
  umask(mask);
  std::filesystem::remove_all(root);
  RecordProperty("refused", refused);
  RecordProperty("refused_in_order", refused_in_order);
  EXPECT_GT(refused, kHistories * 9 / 10);
  EXPECT_GT(refused_in_order, kHistories * 95 / 100);
}

}  // namespace
}  // namespace cairnfs::testing
