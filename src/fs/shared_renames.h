// SharedNameChanges: NameChanges among several hosts. A directory shows its new name once every byte that was closed
// below it before, on any host, is durable and published; where that cannot be, the rename fails and says which host
// and which files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fs/name_changes.h"
#include "fs/unpublished.h"

namespace cairnfs::fs {

class SharedNameChanges final : public NameChanges {
 public:
  struct Parts {  // all outlive it
    ClusterHost& host;
    const SharedSession& session;
    SharedCopies& copies;
    Unpublished& unpublished;
  };
  SharedNameChanges(const Services& services, const Parts& parts) : NameChanges(services), shared_(parts) {}

  void WhenAdmitted(NameChange change, const Caller& caller, Done<void> go) override;
  void Rename(const meta::RenameParams& params, const Caller& caller, Done<void> done) override;
  void SyncNames(Done<void> done) override { done({}); }

 private:
  struct Renaming {
    meta::RenameParams params;
    Caller caller;
    std::vector<meta::Attr> sources;  // what gets a new name: two of them are exchanged
    uint64_t session = 0;             // under which it was begun
    Clock::time_point begun_at;
    bool has_directory = false;
    bool may_need_copies = false;
  };
  Result<Renaming> Begin(const meta::RenameParams& names, const Caller& caller);
  void CommitPublished(const Renaming& renaming, const Done<void>& done);
  // What was published at level `local`, by whatever host, gets its copies before it is seen where they are promised.
  Status MakeReplicated(const Renaming& renaming);
  // Of sources that are files: why not all of them is published.
  Status CheckAllPublished(const Renaming& renaming);
  // A cause for each file among or below the sources that lost bytes on this host; where there is none, for each that
  // is not published.
  Result<Unpublished::Found> FindUnsafe(const Renaming& renaming);
  // Nothing of these is left to be published, as far as this host has them in memory.
  bool ArePublished(const std::vector<meta::Attr>& files);
  // For the log, the status and the rank gate. Returns the causes in one line.
  std::string NoteRefused(const Renaming& renaming, std::vector<meta::RefusalCause> causes);
  // Of a rename that was refused for lack of copies: a cause for each file of this host below the sources, or of
  // them, that is not published and lacks some. Few of many; none where that cannot be found out, or for other reasons.
  std::vector<meta::RefusalCause> LackingCopies(const Error& why, const std::vector<meta::Attr>& sources);
  // Ends a rename that waited in vain for what is to be durable before: says why, to the caller and to who asks later;
  // to the latter also of which files.
  void Refuse(const Renaming& renaming, const Error& why, const Done<void>& done,
              const std::vector<meta::RefusalCause>& files = {});
  void Refuse(const meta::RenameParams& params, const Caller& caller, const Error& why) override;

  const Parts shared_;
};

}  // namespace cairnfs::fs
