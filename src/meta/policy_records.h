// What the store keeps of policies beside the attribute: a key by which directories that have one are found without a
// walk, and how it was last applied. docs/formats/namespace.md has the byte tables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/types.h"
#include "kv/store.h"

namespace cairnfs::meta {

// Beside PolicyKey, written by the host that applies policies.
struct AppliedRecord {
  uint64_t revision = 0;       // of PolicyKey when it began: a later one says that something has changed since
  Timestamp at;                // when it ended, by the clock of that host
  Timestamp next;              // when it is due again though nothing changes
  uint32_t looks_in_vain = 0;  // one after the other, for what keeps a checkpoint only for now
  std::string host;            // its name, for people; empty: it is alone

  std::string Encode() const;
  static Result<AppliedRecord> Decode(std::string_view value);
};

// Exists for each directory that has a policy. It is put anew by whatever may let one of its checkpoints go: a commit
// right in it, a changed policy, a metric, a pin or hold that is taken away. So its revision tells whether there is
// something to do. Without a policy it says that a removal may have been cut short in the directory; or it is left,
// where one was removed while another host committed.
std::string PolicyKey(InodeId directory);
std::string PoliciesPrefix();  // of AppliedKey, too
std::string PolicyKeyValue();  // the same for each
std::string AppliedKey(InodeId directory);
std::string AppliedReportKey(InodeId directory);  // what went and why nothing could: retention::Report::Text
std::optional<InodeId> InodeOfPolicyKey(std::string_view key);   // nullopt for another key
std::optional<InodeId> InodeOfAppliedKey(std::string_view key);  // the same

// Adds to the transaction that all of this of a directory goes. Without it its policy is not applied.
void DropPolicy(InodeId directory, kv::Transaction& transaction);
// Adds that the directory has no policy any more. Its key goes once somebody has looked whether a removal was cut
// short.
Status EndPolicy(const Context& context, kv::KvStore& store, InodeId directory, kv::Transaction& transaction);
// Adds to the transaction that the policy of the directory has something to do, where it has one.
Status TouchPolicy(const Context& context, kv::KvStore& store, InodeId directory, kv::Transaction& transaction);

}  // namespace cairnfs::meta
