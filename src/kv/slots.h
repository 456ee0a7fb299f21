// Slots: how a client finds out what became of a commit whose answer was lost.
//
// Each commit that is sent also compares a key of the client's own, its slot, with what the slot last had, and puts the
// attempt's unique name into it. A slot carries one commit at a time. When an answer is lost, the client claims the
// slot once more, with a name that means nothing. If that succeeds, the attempt did not run and never can, because its
// compare of the slot fails from then on. If it fails, the slot holds the attempt's name, and its revision is that of
// the commit. CommitSlots is the client's side; a store takes part by committing a SlotClaim along with a transaction.
#pragma once

#include <cstdint>
#include <string>

#include "kv/store.h"

namespace cairnfs::kv {

struct SlotClaim {
  std::string slot;                // a key in a space of its own, which no read or watch shows
  uint64_t expected_revision = 0;  // of the slot's last change; 0: it does not exist
  std::string value;               // what it holds afterwards
  LeaseId lease = 0;               // the slot goes with it
};

struct SlottedAnswer {
  bool committed = false;  // false: a compare failed, the slot's or another; nothing is changed
  uint64_t revision = 0;   // of the commit
  // Where not committed, the slot as it is.
  uint64_t slot_revision = 0;  // 0: it does not exist
  std::string slot_value = {};
};

}  // namespace cairnfs::kv
