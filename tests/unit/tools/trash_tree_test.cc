#include "trash_tree.h"

#include <gtest/gtest.h>

#include <string>

namespace cairnfs::tools {
namespace {

control::TrashEntry EntryOf(uint64_t id, uint64_t parent, const std::string& path, const char* type = "file") {
  control::TrashEntry entry;
  entry.set_id(id);
  entry.set_parent(parent);
  entry.set_path(path);
  entry.set_type(type);
  return entry;
}

std::vector<uint64_t> NumbersOf(const TrashTree& tree) {
  std::vector<uint64_t> numbers;
  for (const auto& entry : tree.below) numbers.push_back(entry.id());
  return numbers;
}

// As rm -r leaves them: what lay in a directory was removed before it.
TEST(TrashTree, DirectoriesComeBeforeWhatLayInThem) {
  const std::vector<control::TrashEntry> entries{
      EntryOf(13, 12, "run/a/b/deep"), EntryOf(12, 11, "run/a/b", "directory"),
      EntryOf(14, 11, "run/a/file"),   EntryOf(11, 10, "run/a", "directory"),
      EntryOf(20, 10, "run/other"),    EntryOf(21, 20, "#20/of a file"),
  };
  EXPECT_EQ(NumbersOf(TreeBelow(entries, 11)), (std::vector<uint64_t>{12, 14, 13}));
  EXPECT_EQ(NumbersOf(TreeBelow(entries, 10)), (std::vector<uint64_t>{11, 20, 12, 14, 13})) << "10 was not removed";
  EXPECT_TRUE(TreeBelow(entries, 14).below.empty());
  EXPECT_TRUE(TreeBelow({}, 11).below.empty());
}

TEST(TrashTree, OfOneNameTheLastRemovedComesBack) {
  const std::vector<control::TrashEntry> entries{
      EntryOf(11, 10, "run/a"),
      EntryOf(12, 10, "run/b"),
      EntryOf(13, 10, "#10/a"),
      EntryOf(10, 1, "run", "directory"),
  };
  const TrashTree tree = TreeBelow(entries, 10);
  EXPECT_EQ(NumbersOf(tree), (std::vector<uint64_t>{13, 12}));
  EXPECT_EQ(tree.replaced, 1U);
}

// Nobody makes one, but the list comes from elsewhere.
TEST(TrashTree, ARingEnds) {
  const std::vector<control::TrashEntry> entries{EntryOf(11, 12, "a", "directory"), EntryOf(12, 11, "b", "directory")};
  EXPECT_EQ(NumbersOf(TreeBelow(entries, 11)), (std::vector<uint64_t>{12, 11}));
}

}  // namespace
}  // namespace cairnfs::tools
