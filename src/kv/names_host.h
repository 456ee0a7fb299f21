// NamesHost: one of the three hosts among which the names of a cluster lie. It is the primary, which serves them; its
// standby, which follows; or the witness, which votes alone. What it is stands in the register (names_register.h), and
// may change while it runs. docs/cluster/standby.md tells how it all goes together.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/context.h"
#include "base/thread_annotations.h"
#include "kv/follower.h"
#include "kv/hosted_store.h"
#include "kv/name_room.h"
#include "kv/names_register.h"
#include "kv/standby_log.h"

namespace cairnfs::kv {

class NamesHost final : public NameRoomUser {
 public:
  struct Options {
    Member self;
    // Calls to another host; never null.
    struct Remote {
      std::shared_ptr<Voter> voter;
      std::shared_ptr<FollowerCalls> follower;
    };
    std::function<Remote(const Member& member)> reach;
    bool has_names_at_first = false;  // it serves the names that it has where no register tells who does
    HostedStoreOptions hosting;       // its log is this object's
    std::chrono::milliseconds tick{1'000};
    std::chrono::milliseconds append_wait{3'000};
    size_t log_bytes_max = 64 << 20;
  };
  // What a host tells of itself.
  struct Description {
    Member self;
    Vote vote;
    bool is_serving = false;
    Position position;  // of its names
    Position follower;  // of the primary: what its standby has; {0, 0}: not known, or no whole copy
  };
  struct Promotion {
    bool was_primary = false;  // it served the names already, and the rest is not known
    bool was_whole = true;
    int64_t detached_seconds = 0;  // since 1970, where it was not
    // Revisions of the names: of this host, and the largest that is known to have been given elsewhere.
    uint64_t own_revision = 0, known_revision = 0;
  };

  // The engine outlives it, and is used by nobody else.
  // kCorrupt; kUnavailable: no thread.
  static Result<std::unique_ptr<NamesHost>> Open(KvEngine& engine, Options options);
  ~NamesHost() override;  // REQUIRES: no watch is left at serving(), and no call is under way
  void Stop();            // ends all waits in it, and in serving(); what is written from now on fails

  // The store, where this host serves the names; else null. Once there it stays, and answers kUnavailable when another
  // host has taken the names over.
  HostedStore* serving() const { return serving_; }
  const Member& self() const { return options_.self; }
  LocalVoter& voter() { return *voter_; }
  Follower& follower() { return *follower_; }
  Description Describe();
  void SetNameRoom(NameRoom* room) override;

  // Makes the one its standby, and the other the witness. Returns once both know; the copy follows. kInvalidArgument:
  // this host does not serve the names, or has another standby. kUnavailable: not all three answer.
  Status SetStandby(const Context& context, const Member& standby, const Member& witness);
  Status DropStandby(const Context& context);
  // Makes this host, the standby, the primary. Done already is done. kBusy: the primary is up; waits for its lease to
  // end. kInvalidArgument: it is no standby, or lacks names and `may_lose` is not set: the message says what. To be
  // called again after kUnavailable.
  Result<Promotion> Promote(const Context& context, bool may_lose);

 private:
  NamesHost(KvEngine& engine, Options options) : engine_(engine), options_(std::move(options)) {}
  Status Start();
  VoterOf Voters() const;
  Status CheckServes() const REQUIRES_LOCK(look_mutex_);
  Status Look(const Context& context) REQUIRES_LOCK(look_mutex_);
  Status LookAsPrimary(const Context& context, const Vote& vote) REQUIRES_LOCK(look_mutex_);
  Status Serve() REQUIRES_LOCK(look_mutex_);
  Result<Chosen> AskRegister(const Context& context, const Register& known) const;
  uint64_t OwnRevision() const;
  Result<Chosen> ProposePromotion(const Context& context, const Register& now, bool may_lose, Promotion& promotion);

  KvEngine& engine_;
  const Options options_;
  std::shared_ptr<LocalVoter> voter_;
  std::unique_ptr<Follower> follower_;
  std::unique_ptr<StandbyLog> log_;
  std::stop_source stop_;

  Mutex look_mutex_;  // while what this host is may change; taken before all others
  std::unique_ptr<HostedStore> hosted_ GUARDED_BY(look_mutex_);
  NameRoom* room_ GUARDED_BY(look_mutex_) = nullptr;
  std::string told_ GUARDED_BY(look_mutex_);  // the last error in the log
  std::atomic<HostedStore*> serving_{nullptr};

  std::thread lease_thread_, catch_up_thread_;
};

}  // namespace cairnfs::kv
