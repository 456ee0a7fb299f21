// Several filesystems in one process on one shared store: real membership, real chunk stores of each host, chunks that
// every host can read from the others, and peers that call each other's handlers.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "../../support/draw_text.h"
#include "../../support/eventually.h"
#include "base/clock.h"
#include "cluster/cluster_chunk_store.h"
#include "cluster_doubles.h"
#include "coherence/cluster_locks.h"
#include "coherence/fenced_store.h"
#include "fs/attributes.h"
#include "fs/filesystem.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/reader.h"
#include "fs/writer.h"
#include "io/memory_disk.h"
#include "kv/hosted_store.h"

namespace cairnfs::fs {

inline std::string TextOf(uint64_t seed, size_t size) {
  std::mt19937_64 random(seed);
  return DrawText(random, size);
}

class Host {
 public:
  struct Shared {
    kv::SharedKvStore& store;
    Switchboard& board;
    TestChunks::Stores& stores;
    chunking::ChunkParams params;
    // Of the host that keeps the names, if they lie on its disk.
    kv::HostedStore* hosted = nullptr;
    kv::KvEngine* names_engine = nullptr;
  };
  Host(const Shared& shared, unsigned number, const FsOptions& the_options) : shared_(shared), options(the_options) {
    auto pool_or = io::BufferPool::Create({.size_bytes_max = 32 * kMiB, .reserved_count = 4});
    EXPECT_TRUE(pool_or.ok());
    pool = std::move(*pool_or);
    engine = kv::OpenMemoryEngine();
    disk = std::make_unique<io::MemoryDisk>(io::MemoryDisk::Options{});
    store::StoreOptions store_options;
    store_options.segment_bytes = 4 * kMiB;
    store_options.engine_beside = shared_.names_engine;
    auto local_or = store::LocalChunkStore::Open(*disk, *engine, *pool, store_options);
    EXPECT_TRUE(local_or.ok());
    local = std::move(*local_or);
    shared_.stores.push_back(local.get());
    cluster::MembershipOptions membership_options;
    membership_options.self.id.bytes[15] = static_cast<std::byte>(number);
    membership_options.self.name = "host" + std::to_string(number);
    membership_options.self.address = "test:" + std::to_string(number);
    membership_options.lease = std::chrono::seconds(20);  // a busy machine loses none by itself
    membership_options.renew_every = std::chrono::milliseconds(200);
    auto joined = cluster::Membership::Join(shared_.store, membership_options);
    EXPECT_TRUE(joined.ok());
    membership = std::make_unique<TestMembership>(std::move(*joined));
    fenced = coherence::MakeFencedStore(shared_.store, *membership);
    gate = std::make_unique<Gate>(*fenced);
    quota_gate = std::make_unique<Gate>(*fenced);
    meta::NamespaceOptions names_options;
    names_options.remote = true;
    names = std::make_unique<meta::Namespace>(*gate, nullptr, names_options);
    chunks = std::make_unique<TestChunks>(*local, shared_.stores);
    locks =
        std::make_unique<coherence::ClusterLocks>(coherence::ClusterLocks::Parts{shared_.store, *fenced, *membership});
    peers = std::make_unique<TestPeers>(shared_.board, membership->self());
  }
  ~Host() { Close(); }
  void Start() {
    FileSystem::Parts parts{
        .pool = *pool,
        .kv = *gate,
        .engines = {engine.get()},
        .names = *names,
        .chunks = *chunks,
        .local_chunks = *local,
        .chunk_params = shared_.params,
        .cluster = {{*membership, *peers, *chunks, *locks, *quota_gate, shared_.store, shared_.hosted}},
        .lacks_copies = [this] { return lacks_copies.load(); }};
    if (served_engine != nullptr) parts.engines.push_back(served_engine);
    auto started = FileSystem::Start(parts, options);
    ASSERT_TRUE(started.ok()) << started.error().message;
    fs = std::move(*started);
  }
  void Close() {
    if (fs) static_cast<void>(fs->Stop());
    fs.reset();
    locks.reset();
    membership.reset();
    // Its chunks can be read still, as those of a node that is up again.
  }
  // As by a power cut: nothing of it gets through any more, and its session ends.
  void Die() {
    membership->may_rejoin = false;
    gate->shut = true;
    FallSilent();
    EndSession();
  }
  // Others reach it no more.
  void FallSilent() {
    std::lock_guard lock(shared_.board.mutex);
    shared_.board.handlers.erase(membership->self());
  }
  void EndSession() {
    auto session = membership->session();
    ASSERT_TRUE(session.ok());
    ASSERT_TRUE(shared_.store.RevokeLease({}, session->lease).ok());
  }
  // Whether the filesystem opens files: it takes a new session after the membership has it.
  bool HasSession() {  // waits for one
    auto root = OpenInode(kRootInode);
    return !root.ok() && root.error().code == ErrorCode::kIsDirectory;
  }
  const std::string name() const { return "host" + std::to_string(std::to_integer<int>(membership->self().bytes[15])); }

  // Blocking forms.
  template <typename T, typename Start>
  static Result<T> Await(Start start) {
    auto promise = std::make_shared<std::promise<Result<T>>>();
    auto future = promise->get_future();
    start([promise](Result<T> result) { promise->set_value(std::move(result)); });
    return future.get();
  }
  FileSystem::Created Create(std::string_view file_name, InodeId parent = kRootInode) {
    meta::CreateParams params;
    params.mode = S_IFREG | 0644;
    auto created = fs->open_files().Create({}, parent, file_name, params, {.read = true, .write = true});
    EXPECT_TRUE(created.ok()) << (created.ok() ? "" : created.error().message);
    return created.ok() ? *created : FileSystem::Created{};
  }
  InodeId MakeDirectory(std::string_view directory_name, InodeId parent = kRootInode) {
    meta::CreateParams params;
    params.mode = S_IFDIR | 0755;
    auto made = fs->names().MakeNode({}, parent, directory_name, params);
    EXPECT_TRUE(made.ok());
    return made.ok() ? made->inode : InodeId{};
  }
  FileSystem::WriteRequest RequestOf(const FileSystem::Created& file, uint64_t offset, std::string_view bytes) {
    FileSystem::WriteRequest request;
    request.handle = file.handle;
    request.inode = file.attr.inode;
    request.offset = offset;
    request.data.owner = pool->Acquire();
    std::memcpy(request.data.owner.payload(), bytes.data(), bytes.size());
    request.data.data = request.data.owner.payload();
    request.data.size = bytes.size();
    return request;
  }
  Status Send(FileSystem::WriteRequest request) {
    auto written = Await<size_t>([&](Done<size_t> done) { fs->writer().Write(std::move(request), std::move(done)); });
    return written.ok() ? Status() : Status(written.error());
  }
  Status Write(const FileSystem::Created& file, uint64_t offset, std::string_view bytes) {
    return Send(RequestOf(file, offset, bytes));
  }
  Result<std::string> Read(const FileSystem::Created& file, uint64_t offset, size_t size, const Caller& caller = {}) {
    auto read = Await<FileSystem::ReadResult>([&](Done<FileSystem::ReadResult> done) {
      fs->reader().Read(file.handle, file.attr.inode, offset, size, std::move(done), {.caller = caller});
    });
    if (!read.ok()) return read.error();
    std::string text;
    for (const io::Slice& slice : read->slices) text += AsText(slice.bytes());
    return text;
  }
  Result<FileSystem::Created> Open(std::string_view file_name, OpenFlags flags = {.read = true, .write = true},
                                   InodeId parent = kRootInode, const Caller& caller = {}) {
    FileSystem::Created file;
    CAIRNFS_ASSIGN_OR_RETURN(file.attr, fs->names().Lookup({}, parent, file_name));
    fs->names().Forget(file.attr.inode, 1);
    CAIRNFS_ASSIGN_OR_RETURN(file.handle, OpenInode(file.attr.inode, flags, caller));
    return file;
  }
  Result<HandleId> OpenInode(InodeId inode, OpenFlags flags = {.read = true, .write = true},
                             const Caller& caller = {}) {
    return Await<HandleId>([&](Done<HandleId> done) { fs->open_files().Open(inode, flags, std::move(done), caller); });
  }
  Status Flush(const FileSystem::Created& file, const Caller& caller = {}) {
    return Await<void>([&](Done<void> done) { fs->open_files().Flush({file.handle}, std::move(done), caller); });
  }
  Status CloseFile(const FileSystem::Created& file) {
    Status status = Flush(file);
    fs->open_files().Release(file.handle);
    return status;
  }
  Status Fsync(const FileSystem::Created& file) {
    return Await<void>([&](Done<void> done) { fs->open_files().Fsync(file.handle, file.attr.inode, done); });
  }
  Status Sync() {
    return Await<void>([&](Done<void> done) { fs->maintenance().Sync(std::move(done)); });
  }
  Result<meta::Attr> SetAttr(InodeId inode, const SetAttrRequest& request) {
    return Await<meta::Attr>([&](Done<meta::Attr> done) { fs->attributes().SetAttr(inode, request, done); });
  }
  // As ftruncate(2), with the open file's handle.
  Status Truncate(InodeId inode, uint64_t size, std::optional<HandleId> handle = std::nullopt) {
    SetAttrRequest request;
    request.size = size;
    request.handle = handle;
    auto attr = SetAttr(inode, request);
    return attr.ok() ? Status() : Status(attr.error());
  }
  Status Rename(InodeId from, std::string from_name, InodeId to, std::string to_name) {
    meta::RenameParams params{from, std::move(from_name), to, std::move(to_name), meta::RenameMode::kReplace};
    return Await<void>([&](Done<void> done) { fs->names().Rename(params, {}, std::move(done)); });
  }
  Status Link(InodeId inode, InodeId to, std::string_view to_name, const Caller& caller = {}) {
    auto linked = Await<meta::Attr>(
        [&](Done<meta::Attr> done) { fs->names().Link(inode, to, to_name, std::move(done), caller); });
    return linked.ok() ? Status() : Status(linked.error());
  }
  Status Unlink(std::string_view file_name, InodeId parent = kRootInode) {
    Status admitted =
        Await<void>([&](Done<void> done) { fs->names().WhenAdmitted(NameChange::kRemoves, std::move(done)); });
    return admitted.ok() ? fs->names().Unlink({}, parent, file_name) : admitted;
  }
  Result<std::string> Durability(InodeId inode) {
    return Await<std::string>(
        [&](Done<std::string> done) { fs->attributes().GetXattr(inode, "user.cairnfs.durability", std::move(done)); });
  }
  Result<CollectionStatus> Collect() {
    return Await<CollectionStatus>([&](Done<CollectionStatus> done) { fs->maintenance().Collect(std::move(done)); });
  }
  // The whole content, as a process finds it that opens the file, reads and closes it.
  std::string Cat(std::string_view file_name, InodeId parent = kRootInode) {
    auto file = Open(file_name, {.read = true}, parent);
    if (!file.ok()) return "cannot open: " + file.error().message;
    auto text = Read(*file, 0, kMiB);
    EXPECT_TRUE(CloseFile(*file).ok());
    return text.ok() ? *text : "cannot read: " + text.error().message;
  }
  // Writes a new file that stays open, and so is not published.
  InodeId PutOpen(std::string_view file_name, std::string_view bytes, InodeId parent = kRootInode) {
    auto file = Create(file_name, parent);
    EXPECT_TRUE(Write(file, 0, bytes).ok());
    return file.attr.inode;
  }
  // Writes a new file as a process that is killed then: nobody waits for its close.
  InodeId PutKilled(std::string_view file_name, std::string_view bytes, InodeId parent = kRootInode) {
    auto file = Create(file_name, parent);
    EXPECT_TRUE(Write(file, 0, bytes).ok());
    fs->open_files().Release(file.handle);
    return file.attr.inode;
  }
  // Writes a new file whose close fails.
  InodeId PutInVain(std::string_view file_name, std::string_view bytes, InodeId parent = kRootInode) {
    auto file = Create(file_name, parent);
    EXPECT_TRUE(Write(file, 0, bytes).ok());
    EXPECT_FALSE(CloseFile(file).ok());
    return file.attr.inode;
  }
  // Writes a whole new file and closes it.
  InodeId Put(std::string_view file_name, std::string_view bytes, InodeId parent = kRootInode) {
    auto file = Create(file_name, parent);
    EXPECT_TRUE(Write(file, 0, bytes).ok());
    EXPECT_TRUE(CloseFile(file).ok());
    return file.attr.inode;
  }

  kv::KvEngine* served_engine = nullptr;  // of a host that serves the names
  std::atomic<bool> lacks_copies{false};
  const Shared shared_;
  FsOptions options;
  std::unique_ptr<io::BufferPool> pool;
  std::unique_ptr<kv::KvEngine> engine;
  std::unique_ptr<io::Disk> disk;
  std::unique_ptr<store::LocalChunkStore> local;
  std::unique_ptr<TestMembership> membership;
  std::unique_ptr<kv::KvStore> fenced;
  std::unique_ptr<Gate> gate;
  std::unique_ptr<Gate> quota_gate;  // of shares of quotas, and of what is written past the names
  std::unique_ptr<meta::Namespace> names;
  std::unique_ptr<TestChunks> chunks;
  std::unique_ptr<TestPeers> peers;
  std::unique_ptr<coherence::ClusterLocks> locks;
  std::unique_ptr<FileSystem> fs;
};

class ClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    engine_ = kv::OpenMemoryEngine();
    auto store = kv::HostedStore::Open(*engine_);
    ASSERT_TRUE(store.ok());
    store_ = std::move(*store);
    // By themselves rounds come late: what a test sees is what was asked for.
    options_.flush_interval_ms = 3'600'000;
    options_.commit_wait_seconds_max = 20;
  }
  void TearDown() override {
    for (auto& host : hosts_) host->Close();
    // A host that stored what it had read from another keeps it in that one's buffers.
    for (auto& host : hosts_) host->local->DropCache();
    hosts_.clear();
  }
  void MakeHosts(unsigned count) {
    for (unsigned i = 1; i <= count; i++) AddHost(i);
    // What one says of another names it, once its view does.
    for (const auto& host : hosts_) {
      while (host->membership->view()->nodes.size() < count) Clock::SleepFor(std::chrono::milliseconds(1));
    }
  }
  Host& AddHost(unsigned number) {
    Host::Shared shared{*store_, board_, stores_, params_};
    if (first_keeps_names_ && number == 1) {
      shared.hosted = store_.get();
      shared.names_engine = engine_.get();
    }
    hosts_.push_back(std::make_unique<Host>(shared, number, options_));
    Host& host = *hosts_.back();
    if (!is_formatted_) {
      is_formatted_ = true;
      meta::FilesystemHeader header;
      header.uuid = std::string(16, 'u');
      header.chunk_params = params_.Encode();
      EXPECT_TRUE(host.names->Format({}, header, 0, 0).ok());
    }
    if (before_start_) before_start_(host);
    host.Start();
    return host;
  }
  Host& host(size_t index) { return *hosts_[index]; }
  // A host's session ends, everything it has not published is given up, and it takes a new one, which all hosts see.
  void LoseSession(size_t index) {
    Host& loser = host(index);
    const uint64_t before = loser.membership->session()->revision;
    loser.EndSession();
    EXPECT_TRUE(Eventually([&] {
      const auto session = loser.membership->session();
      if (!session.ok() || session->revision == before || !loser.HasSession()) return false;
      return std::all_of(hosts_.begin(), hosts_.end(), [&](const auto& each) {
        const cluster::ViewPtr view = each->membership->view();
        const cluster::NodeInfo* seen = view->Find(loser.membership->self());
        return seen != nullptr && seen->session == session->revision;
      });
    })) << "no new session";
  }
  // All deleted files that the host was told of before were asked about, and removed where nobody holds them: one that
  // is deleted now comes after them.
  void SettleOrphans(Host& by) {
    const InodeId last = by.Put("last deleted", "x");
    ASSERT_TRUE(by.Unlink("last deleted").ok());
    by.fs->names().Forget(last, 1);
    EXPECT_TRUE(Eventually([&] { return !HasKey(meta::InodeKey(last)); }));
  }
  size_t KeyCount(std::string_view prefix) {
    auto range = store_->Range({}, prefix, kv::PrefixEnd(prefix), 0);
    return range.ok() ? range->entries.size() : SIZE_MAX;
  }
  // Keys of inodes: those of members begin with letters of their own.
  bool HasKey(const std::string& key) {
    auto entry = store_->Get({}, key);
    return entry.ok() && entry->has_value();
  }

  FsOptions options_;
  std::function<void(Host&)> before_start_;  // of each host, which has joined the cluster
  chunking::ChunkParams params_{.size_bytes_min = 4096, .size_bytes_max = 32768, .mask_bits = 0};
  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::HostedStore> store_;
  Switchboard board_;
  TestChunks::Stores stores_;
  bool is_formatted_ = false;
  bool first_keeps_names_ = false;  // on its disk
  std::vector<std::unique_ptr<Host>> hosts_;
};

}  // namespace cairnfs::fs
