// A filesystem with a directory that has a quota, on one host.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>

#include "fixture.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/quota_settings.h"
#include "fs/scan.h"

namespace cairnfs::fs {

inline constexpr uint64_t kSomeBytes = 512 * kKiB;

class QuotasTest : public ::testing::Test {
 protected:
  QuotasTest() {
    world_.fs_options.flush_interval_ms = 1000;
    world_.Remake();
    run_ = MakeDirectory("run");
  }
  InodeId MakeDirectory(std::string_view name) {
    return world_.fs->names().MakeNode({}, kRootInode, name, WithMode(S_IFDIR | 0755))->inode;
  }
  Status Set(std::optional<uint64_t> logical, std::optional<uint64_t> unique = {}, bool force = false) {
    return world_.fs->quotas().Set({}, {run_, logical, unique, force}, [](uint64_t) { return true; });
  }
  Status TakeOff() {
    return world_.fs->quotas().TakeOff({}, run_, [](uint64_t) { return true; });
  }
  // As the front end does: what is refused is tried once more, when what was freed is known.
  FileSystem::Created Create(std::string_view name) {
    OpenFiles& files = world_.fs->open_files();
    const auto create = [&] {
      return files.Create({}, run_, name, WithMode(S_IFREG | 0644), {.read = true, .write = true});
    };
    auto created = create();
    if (!created.ok() && created.error().code == ErrorCode::kQuotaExceeded) {
      EXPECT_TRUE(World::Await<void>([&](Done<void> done) { files.AwaitMayCreate(run_, {}, std::move(done)); }).ok());
      created = create();
    }
    EXPECT_TRUE(created.ok()) << created.error().message;
    return *created;
  }
  void Save(std::string_view name, std::string_view text) {
    auto file = Create(name);
    EXPECT_TRUE(world_.Write(file, 0, text).ok());
    EXPECT_TRUE(world_.Fsync(file).ok());
    Close(file);
  }
  // Of one that nobody has open. Returns its record.
  std::string DamageContentOf(InodeId file) {
    const std::string key = meta::FileKey(file);
    const std::string record = (*world_.kv->Get({}, key))->value;
    Put(key, record.substr(0, record.size() / 2));
    return record;
  }
  void Put(const std::string& key, const std::string& value) {
    kv::Transaction transaction;
    transaction.Put(key, value);
    EXPECT_TRUE(world_.kv->Commit({}, transaction).ok());
  }
  void Close(const FileSystem::Created& file) {
    world_.CloseFile(file);
    world_.fs->names().Forget(file.attr.inode, 1);
  }
  meta::QuotaBytes Used() {
    auto all = world_.fs->quotas().All({});
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? meta::QuotaBytes() : all[0].used;
  }
  // What the records of files say.
  meta::QuotaBytes Recorded() {
    meta::QuotaBytes sum;
    EXPECT_TRUE(ScanPrefix({}, *world_.kv, "D", [&](const kv::KvEntry& entry) {
                  auto record = meta::FileRecord::Decode(entry.value);
                  const auto inode = meta::InodeOfKey(entry.key);
                  const auto attr = world_.names->GetAttr({}, *inode);
                  if (!record.ok() || record->quota != run_ || !attr.ok() || attr->nlink == 0) return true;
                  sum.logical += record->allocated_bytes;
                  sum.unique += record->unique_bytes;
                  return true;
                }).ok());
    return sum;
  }

  World world_;
  InodeId run_;
};

}  // namespace cairnfs::fs
