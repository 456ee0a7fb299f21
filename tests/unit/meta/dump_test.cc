#include "meta/dump.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/coding.h"
#include "fixture.h"
#include "kv/hosted_store.h"
#include "meta/load.h"
#include "meta/quota_records.h"

namespace cairnfs::meta {
namespace {

using Entries = std::map<std::string, std::string>;

DumpSource SourceOf(const std::string& bytes) {
  return [&bytes](uint64_t offset, size_t size) -> Result<std::string> {
    return offset < bytes.size() ? bytes.substr(offset, size) : std::string();
  };
}

Entries EntriesOf(kv::KvStore& store) {
  Entries entries;
  auto range = store.Range({}, "", "", 0);
  EXPECT_TRUE(range.ok());
  for (const kv::KvEntry& entry : range->entries) entries[entry.key] = entry.value;
  return entries;
}

// A store of a cluster on an engine in memory, into which names are loaded.
struct Target {
  std::unique_ptr<kv::KvEngine> engine = kv::OpenMemoryEngine();
  std::unique_ptr<kv::HostedStore> store = std::move(*kv::HostedStore::Open(*engine));

  Status Load(const std::string& dump) {
    std::vector<kv::KvWrite> last;
    NamesLoader loader(*store);
    CAIRNFS_RETURN_IF_ERROR(loader.Begin({}));
    CAIRNFS_RETURN_IF_ERROR(ReadDump(SourceOf(dump), [&](std::string_view key, std::string_view value) -> Status {
      kv::KvWrite entry = EntryToLoad(key, value);
      if (key == ClusterSettingsKey()) {
        last.push_back(std::move(entry));
        return {};
      }
      return loader.Put({}, entry.key, *entry.value);
    }));
    return loader.Finish({}, last);
  }
  // What every host asks first.
  bool HoldsCluster() { return (*store->Get({}, ClusterSettingsKey())).has_value(); }
};

class DumpTest : public NamespaceTest {
 protected:
  void SetUp() override {
    NamespaceTest::SetUp();
    const InodeId directory = MakeDirectory(kRootInode, "run");
    const InodeId file = MakeFile(directory, "file");
    MakeFile(kRootInode, "other");
    Make(directory, "link", S_IFLNK | 0777);
    EXPECT_OK(names().Link({}, file, kRootInode, "second name"));
    EXPECT_OK(names().SetXattr({}, file, "user.a", "value", Namespace::XattrMode::kSet));
    kv::Transaction more;
    FileRecord record;
    record.size = 5;
    record.mtime = {1, 999'999'999};
    record.recipe = "recipe";
    more.Put(FileKey(file), record.Encode());
    more.Put(QuotaKey(directory), QuotaRecord{}.Encode());
    more.Put(UsageKey(file), UsageRecord{directory, {1, 1}}.Encode());
    more.Put(LevelKey(directory), LevelRecord{false}.Encode());
    more.Put(AtomicKey(directory), AtomicRecord{"*.pt", true}.Encode());
    more.Put(MarkKey(file, std::string(kNodeIdBytes, 'n'), 77), UnpublishedMark{77, "why"}.Encode());
    more.Put(ClusterSettingsKey(), "settings");
    for (const char* key : {"MS", "MN", "L", "Q", "K", "B", "WA", "WE", "WH", "WU", "U", "G"})
      more.Put(key, "not in a dump");
    EXPECT_TRUE(store_->Commit({}, more).ok());
    dump_ = Dump();
  }

  std::string Dump() {
    std::string bytes;
    DumpWriter writer([&](std::string_view more) -> Status {
      bytes += more;
      return {};
    });
    EXPECT_TRUE(writer.Begin({DumpHead::Of::kCluster, "0123456789abcdef", {3, 4}, "0.1"}).ok());
    auto revision = store_->VisitDurable({}, "", "", [&](const kv::KvEntryView& entry) {
      if (!IsInDump(entry.key)) return true;
      EXPECT_TRUE(writer.Add(entry.key, entry.value).ok());
      return true;
    });
    EXPECT_TRUE(writer.Finish(*revision).ok());
    return bytes;
  }

  // An error, and nothing that a host would open.
  void ExpectRefused(const std::string& dump, ErrorCode code, std::string_view why) {
    Target target;
    const Status loaded = target.Load(dump);
    ASSERT_FALSE(loaded.ok()) << why;
    EXPECT_EQ(ErrorCodeName(loaded.error().code), ErrorCodeName(code));
    EXPECT_NE(loaded.error().message.find(why), std::string::npos) << loaded.error().message;
    EXPECT_FALSE(target.HoldsCluster());
  }

  std::string dump_;
};

TEST_F(DumpTest, WhatIsLoadedIsWhatWasDumped) {
  Target target;
  EXPECT_OK(target.Load(dump_));
  Entries expected = EntriesOf(*store_), loaded = EntriesOf(*target.store);
  std::erase_if(expected, [](const auto& entry) { return !IsInDump(entry.first); });
  // But for two: no session of the other store is one of this, and numbers may have been given out meanwhile.
  const auto is_mark = [](const auto& entry) { return entry.first.starts_with("P"); };
  ASSERT_EQ(std::erase_if(expected, is_mark), 1U);
  const auto mark = std::find_if(loaded.begin(), loaded.end(), is_mark);
  ASSERT_NE(mark, loaded.end());
  EXPECT_EQ(UnpublishedMark::Decode(mark->second)->session, 1U);
  EXPECT_EQ(UnpublishedMark::Decode(mark->second)->failure, "why");
  loaded.erase(mark);
  EXPECT_EQ(Decoder(loaded[NextInodeKey()]).U64(), Decoder(expected[NextInodeKey()]).U64() + (uint64_t{1} << 32));
  loaded.erase(NextInodeKey());
  expected.erase(NextInodeKey());
  EXPECT_EQ(loaded, expected);
  EXPECT_GT(expected.size(), 15U);
}

TEST_F(DumpTest, BeginsWithTheBytesOfTheFormat) {
  EXPECT_EQ(dump_.substr(0, 16), std::string("CairnDmp\3\0\0\0\0\0\0\0", 16));
  EXPECT_EQ(dump_.substr(20, 4), std::string("\x21\0\0\0", 4));  // 1 + 16 + 12 + 1 + 3 bytes in its first block
  EXPECT_EQ(dump_.substr(24, 16), std::string("\1\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0", 16));
}

TEST_F(DumpTest, SaysWhatItIsOf) {
  auto summary = ReadDump(SourceOf(dump_), [](std::string_view, std::string_view) -> Status { return {}; });
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_EQ(summary->head.filesystem, "0123456789abcdef");
  EXPECT_EQ(summary->head.of, DumpHead::Of::kCluster);
  EXPECT_EQ(summary->head.program, "0.1");
  EXPECT_EQ(summary->bytes, dump_.size());
  EXPECT_EQ(ReadDumpHead(SourceOf(dump_))->taken, (Timestamp{3, 4}));
}

TEST_F(DumpTest, ManyEntriesMakeManyBlocks) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    std::string value(30'000, '\0');
    for (char& c : value) c = static_cast<char>(random());
    EXPECT_OK(names().SetXattr({}, kRootInode, "user." + std::to_string(i), value, Namespace::XattrMode::kSet));
  }
  const std::string dump = Dump();
  EXPECT_GT(dump.size(), 8'000'000U);
  Target target;
  EXPECT_OK(target.Load(dump));
  EXPECT_EQ(EntriesOf(*target.store).size(), EntriesOf(*store_).size() - 12);
  // Cut where a block ends, it is seen to have no end.
  ExpectRefused(dump.substr(0, dump.size() / 2), ErrorCode::kCorrupt, "the dump is cut off at byte");
}

TEST_F(DumpTest, EachCutIsRefused) {
  for (size_t size = 0; size < dump_.size(); ++size) {
    Target target;
    const Status loaded = target.Load(dump_.substr(0, size));
    ASSERT_FALSE(loaded.ok()) << size;
    EXPECT_EQ(loaded.error().code, ErrorCode::kCorrupt);
    EXPECT_FALSE(target.HoldsCluster());
  }
  ExpectRefused(dump_.substr(0, 100), ErrorCode::kCorrupt, "cut off at byte 100");
  ExpectRefused(dump_ + "x", ErrorCode::kCorrupt, "something follows its end");
  ExpectRefused("", ErrorCode::kCorrupt, "no dump of CairnFS");
}

TEST_F(DumpTest, EachChangedByteIsRefused) {
  for (size_t at = 0; at < dump_.size(); ++at) {
    std::string changed = dump_;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    Target target;
    ASSERT_FALSE(target.Load(changed).ok()) << at;
    EXPECT_FALSE(target.HoldsCluster());
  }
  std::string changed = dump_;
  changed[dump_.size() / 2] = static_cast<char>(changed[dump_.size() / 2] ^ 1);
  ExpectRefused(changed, ErrorCode::kCorrupt, "the dump is damaged at byte");
}

TEST_F(DumpTest, ANewerVersionIsRefused) {
  std::string newer = dump_;
  newer[8] = 4;
  ExpectRefused(newer, ErrorCode::kNotSupported, "format version 4, and this program reads versions up to 3");
}

// What a program with a fault, or with bad intent, could have written: its checksums are right.
class StrangeDump : public DumpTest {
 protected:
  std::string Write(const Entries& entries, const std::string& of = "0123456789abcdef") {
    std::string bytes;
    DumpWriter writer([&](std::string_view more) -> Status {
      bytes += more;
      return {};
    });
    EXPECT_TRUE(writer.Begin({DumpHead::Of::kCluster, of, {3, 4}, "0.1"}).ok());
    for (const auto& [key, value] : entries) EXPECT_TRUE(writer.Add(key, value).ok());
    EXPECT_TRUE(writer.Finish(1).ok());
    return bytes;
  }
  Entries Whole() {
    Entries entries = EntriesOf(*store_);
    std::erase_if(entries, [](const auto& entry) { return !IsInDump(entry.first); });
    return entries;
  }
};

TEST_F(StrangeDump, LacksWhatEachHas) {
  for (const std::string& key : {HeaderKey(), InodeKey(kRootInode), NextInodeKey(), ClusterSettingsKey()}) {
    Entries entries = Whole();
    entries.erase(key);
    ExpectRefused(Write(entries), ErrorCode::kCorrupt, "what stands before its end is not what was dumped");
  }
  ExpectRefused(Write(Whole(), "fedcba9876543210"), ErrorCode::kCorrupt, "it is of two filesystems");
}

TEST_F(StrangeDump, HoldsRecordsThatDoNotDecode) {
  for (const auto& [key, value] : Whole()) {
    if (key == ClusterSettingsKey() || key[0] == 'X') continue;
    Entries entries = Whole();
    entries[key] = value + "\x01";
    ExpectRefused(Write(entries), ErrorCode::kCorrupt, "damaged at byte");
  }
  for (const std::string& key : {std::string("E"), std::string("I1234567"), InodeKey({}), DentryKey(kRootInode, "a/b"),
                                 DentryKey(kRootInode, ".."), std::string("Cx"), MarkKey(kRootInode, "short", 1)}) {
    Entries entries = Whole();
    entries[key] = DentryRecord{InodeId{5}, S_IFREG}.Encode();
    ExpectRefused(Write(entries), ErrorCode::kCorrupt, "damaged at byte");
  }
}

TEST_F(StrangeDump, RandomOnesNeitherCrashNorAreLoaded) {
  std::mt19937_64 random(20260101);
  for (int round = 0; round < 3000; ++round) {
    std::string changed = dump_;
    for (uint64_t changes = 1 + random() % 8; changes > 0; --changes) {
      const size_t at = random() % changed.size();
      switch (random() % 4) {
        case 0: changed[at] = static_cast<char>(random()); break;
        case 1: changed.erase(at, random() % 64); break;
        case 2: changed.insert(at, std::string(random() % 64, static_cast<char>(random()))); break;
        default: changed = changed.substr(0, at) + changed.substr(random() % changed.size()); break;
      }
      if (changed.empty()) changed = "x";
    }
    if (changed == dump_) continue;
    Target target;
    ASSERT_FALSE(target.Load(changed).ok()) << round;
    ASSERT_FALSE(target.HoldsCluster());
  }
}

// The same below the checksums. A change that leaves a filesystem of sound records is loaded as it is.
TEST_F(StrangeDump, RandomRecordsAreLoadedAsTheyAreOrNotAtAll) {
  std::mt19937_64 random(20260102);
  int loaded_count = 0;
  for (int round = 0; round < 2000; ++round) {
    Entries entries = Whole();
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
      auto entry = std::next(entries.begin(), static_cast<ptrdiff_t>(random() % entries.size()));
      std::string key = entry->first, value = entry->second;
      std::string& changed = key.size() > 1 && random() % 2 == 0 ? key : value;
      const size_t at = changed.empty() ? 0 : random() % changed.size();
      changed = changed.substr(0, at) + static_cast<char>(random()) + (random() % 3 == 0 ? "" : changed.substr(at));
      if (!IsInDump(key)) continue;  // no dump is written with it
      entries.erase(entry);
      entries[key] = value;
    }
    Target target;
    const Status loaded = target.Load(Write(entries));
    ASSERT_EQ(target.HoldsCluster(), loaded.ok());
    if (!loaded.ok()) continue;
    ++loaded_count;
    for (const auto& [key, value] : entries) {
      const kv::KvWrite expected = EntryToLoad(key, value);
      ASSERT_EQ((*target.store->Get({}, expected.key))->value, expected.value);
    }
  }
  EXPECT_GT(loaded_count, 20);
}

TEST_F(DumpTest, AStoreThatIsNotEmptyIsLeftAsItIs) {
  for (const std::string& key : {HeaderKey(), InodeKey(kRootInode), std::string("MN")}) {
    Target target;
    ASSERT_TRUE(target.store->Commit({}, kv::Transaction().Put(key, "x")).ok());
    EXPECT_CODE(target.Load(dump_), ErrorCode::kAlreadyExists);
    EXPECT_EQ(EntriesOf(*target.store), (Entries{{key, "x"}}));
  }
}

TEST_F(DumpTest, WhatAnInterruptedLoadLeftIsRemoved) {
  Target target;
  ASSERT_TRUE(target.store->Commit({}, kv::Transaction().Put(ClusterSettingsKey(), "of an init, cut short")).ok());
  NamesLoader interrupted(*target.store);
  EXPECT_OK(interrupted.Begin({}));
  EXPECT_FALSE(target.HoldsCluster());
  EXPECT_OK(interrupted.Put({}, "E stray", "x"));
  EXPECT_OK(interrupted.Flush({}));
  EXPECT_OK(target.Load(dump_));
  EXPECT_TRUE(target.HoldsCluster());
  EXPECT_FALSE((*target.store->Get({}, "E stray")).has_value());
  EXPECT_CODE(interrupted.Finish({}, {{ClusterSettingsKey(), "of the first"}}), ErrorCode::kConflict);
}

TEST_F(DumpTest, NothingIsMadeWhereNamesAreBeingLoaded) {
  Target target;
  NamesLoader loader(*target.store);
  EXPECT_OK(loader.Begin({}));
  Namespace other(*target.store, [](const std::vector<kv::KvWrite>&) -> Status { return {}; }, {.remote = true});
  FilesystemHeader header;
  header.uuid = "0123456789abcdef";
  EXPECT_CODE(other.Format({}, header, 0, 0), ErrorCode::kAlreadyExists);
  EXPECT_OK(StopLoading({}, *target.store));
  EXPECT_CODE(loader.Finish({}, {{ClusterSettingsKey(), "too late"}}), ErrorCode::kConflict);
  EXPECT_FALSE(target.HoldsCluster());
}

}  // namespace
}  // namespace cairnfs::meta
