// Keys and values of rank gates: docs/formats/gate.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::control {

enum class GatePhase : uint8_t { kGathering = 0, kRenaming = 1, kDone = 2, kFailed = 3 };

struct GateState {
  uint32_t generation = 1;  // counts the tries of one directory
  uint32_t ranks = 0;
  GatePhase phase = GatePhase::kGathering;
  Timestamp changed;
  InodeId final_parent;
  std::string final_name;
  std::string message;  // why this generation, or the one before it, failed
  std::string Encode() const;
};

// A rank that waits at a gate, or renames for it.
struct GateVisitor {
  uint32_t generation = 1;
  bool waits = true;  // false: came, and has gone
  std::string host;
  uint64_t incarnation = 0;  // of the daemon
  uint64_t call = 0;         // within it
  std::string Encode() const;
};

// kCorrupt
Result<GateState> DecodeGateState(std::string_view value);
Result<GateVisitor> DecodeGateVisitor(std::string_view value);

std::string GatePrefix(InodeId directory);
std::string GateStateKey(InodeId directory);
std::string GateElectedKey(InodeId directory);
std::string GateRanksPrefix(InodeId directory);
std::string GateRankKey(InodeId directory, const std::optional<unsigned>& rank, std::string_view id);
// The number of a rank from its key; nullopt for one with a name.
std::optional<unsigned> RankOfKey(std::string_view key);
// Keys of all gates begin so.
inline constexpr std::string_view kGatesPrefix = "B";
// The directory of any key of a gate.
std::optional<InodeId> DirectoryOfGateKey(std::string_view key);

}  // namespace cairnfs::control
