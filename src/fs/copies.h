// Copies: how many nodes have the chunks of a file, and how many should have them. A host alone has and promises one
// copy.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fs/calls.h"
#include "fs/covering.h"
#include "fs/host_session.h"
#include "fs/lost_files.h"
#include "fs/sync_rounds.h"
#include "fs/unpublished.h"

namespace cairnfs::fs {

// Functions may wait for other hosts. Where one has a body here, that is what a host alone does.
class Copies {
 public:
  virtual ~Copies() = default;
  // The level that the inode has (docs/contract.md), and what it has reached: user.cairnfs.level and .durability.
  virtual Result<std::string> LevelOf(const Context& context, InodeId id) = 0;
  virtual Status SetLevel(const Context& context, InodeId directory,
                          std::optional<std::string_view> name) = 0;  // nullopt: takes it away
  virtual Result<std::string> DurabilityOf(const Context& context, InodeId id) = 0;
  // kIo: some host lost bytes of the inode, or of files below it, or failed to publish them.
  virtual Status CheckBelow(const Context& /*context*/, InodeId /*id*/) { return {}; }
  // Calls `go` when the file has as many copies as `parent` promises, so that it may get a name there. Waits no longer
  // than a commit does.
  virtual void WhenCovered(InodeId /*file*/, InodeId /*parent*/, const Caller& /*caller*/, Done<void> go) { go({}); }
  // Waits until damaged copies here were replaced from other nodes, as far as possible. Returns those that were.
  virtual Result<std::vector<Digest>> AwaitReplaced(const Context& /*context*/,
                                                    const std::vector<Digest>& /*damaged*/) {
    return std::vector<Digest>();
  }
  // The space of all nodes together. nullopt: this node's disk alone counts.
  virtual std::optional<FileSystem::Parts::Space> Space() { return std::nullopt; }
  // For people: why copies are waited for. Empty: none is.
  virtual std::string DescribeShortage() { return {}; }
  // The same, where too few nodes can take them at present; empty else.
  virtual std::string DescribeLackOfNodes() { return {}; }
};

class LocalCopies final : public Copies {
 public:
  struct Parts {  // all outlive it
    const FileSystem::Parts& parts;
    InodeTable& table;
    SyncRounds& rounds;
    LostFiles& lost;
  };
  explicit LocalCopies(const Parts& parts) : at_(parts) {}
  Result<std::string> LevelOf(const Context& context, InodeId id) override;
  Status SetLevel(const Context& context, InodeId directory, std::optional<std::string_view> name) override;
  Result<std::string> DurabilityOf(const Context& context, InodeId id) override;

 private:
  bool IsPending(InodeId id, uint32_t mode);

  const Parts at_;
};

class SharedCopies final : public Copies {
 public:
  struct Parts {  // all outlive it
    const FileSystem::Parts& parts;
    const FsOptions& options;
    ClusterHost& host;
    const SharedSession& session;
    InodeTable& table;
    LostFiles& lost;
    Calls& calls;
    Unpublished& unpublished;
  };
  explicit SharedCopies(const Parts& parts) : at_(parts) {}
  Result<std::string> LevelOf(const Context& context, InodeId id) override;
  Status SetLevel(const Context& context, InodeId directory, std::optional<std::string_view> name) override;
  Result<std::string> DurabilityOf(const Context& context, InodeId id) override;
  Status CheckBelow(const Context& context, InodeId id) override;
  void WhenCovered(InodeId file, InodeId parent, const Caller& caller, Done<void> go) override;
  Result<std::vector<Digest>> AwaitReplaced(const Context& context, const std::vector<Digest>& damaged) override;
  std::optional<FileSystem::Parts::Space> Space() override;
  std::string DescribeShortage() override { return at_.host.chunks().DescribeShortage(); }
  std::string DescribeLackOfNodes() override { return at_.host.chunks().LacksNodes() ? DescribeShortage() : ""; }

  // For no longer than a commit waits, and until the caller is being killed or the server stops.
  Covering CoveringFor(const Caller& caller) const;

 private:
  // Whether sessions that live, or that have ended, have not published the file, or files below the directory.
  struct Unsaved {
    bool by_live = false, by_dead = false;
  };
  Result<Unsaved> FindUnsaved(const Context& context, const meta::Attr& attr);
  std::vector<InodeId> ChangedHere();

  const Parts at_;
};

}  // namespace cairnfs::fs
