// Pages that the kernel keeps for mappings, beside changes that do not come through them (docs/decisions/mappings.md).
#include "fixture.h"

namespace cairnfs::fs {
namespace {

// A page that the kernel filled before the change, and writes back with a store of its own after it.
TEST(MappedPages, ThatAreWrittenBackUndoNoCopyAndNoHole) {
  World world;
  auto from = world.Create("from");
  auto to = world.Create("to");
  ASSERT_TRUE(world.Write(from, 0, "copied").ok());
  const std::string before(3 * kPageBytes, 'b');
  ASSERT_TRUE(world.Write(to, 0, before).ok());
  ReadOptions options;
  options.for_page_cache = true;
  auto filled = World::Await<FileSystem::ReadResult>([&](Done<FileSystem::ReadResult> done) {
    world.fs->reader().Read(to.handle, to.attr.inode, 0, before.size(), std::move(done), options);
  });
  ASSERT_TRUE(filled.ok());
  auto copied = World::Await<size_t>([&](Done<size_t> done) {
    world.fs->writer().CopyRange({from.handle, 0, to.handle, 2048, 6}, std::move(done));
  });
  ASSERT_TRUE(copied.ok());
  ASSERT_TRUE(world.Punch(to, kPageBytes, kPageBytes).ok());

  std::string pages = before;
  pages.replace(0, 4, "mmap");
  ASSERT_TRUE(world.WriteBackPages(to, 0, pages).ok());
  std::string expected = pages;
  expected.replace(2048, 6, "copied");
  expected.replace(kPageBytes, kPageBytes, kPageBytes, '\0');
  EXPECT_TRUE(*world.Read(to, 0, before.size()) == expected);
  world.CloseFile(from);
  world.CloseFile(to);
}

}  // namespace
}  // namespace cairnfs::fs
