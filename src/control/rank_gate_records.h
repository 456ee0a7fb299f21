// Keys and values of rank gates: docs/formats/gate.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::control {

enum class GatePhase : uint8_t { kGathering = 0, kRenaming = 1, kDone = 2, kFailed = 3 };

struct GateState {
  uint64_t try_id = 0;  // random, never 0; each try of a directory has its own
  uint32_t ranks = 0;
  uint32_t at_least = 0;              // 0: all
  std::vector<std::string> required;  // control/required_files.h
  GatePhase phase = GatePhase::kGathering;
  InodeId final_parent;
  std::string final_name;
  std::string renamer;  // name of the rank that is to rename, or did; empty: none
  std::string message;  // why the try failed
  bool IsOpen() const { return phase == GatePhase::kGathering || phase == GatePhase::kRenaming; }
  std::string Encode() const;
};

// A rank that has come and whose call runs.
struct GateRank {
  std::string host;
  uint64_t call_id = 0;  // random: a later call as the same rank has another
  std::string Encode() const;
};

// kCorrupt
Result<GateState> DecodeGateState(std::string_view value);
Result<GateRank> DecodeGateRank(std::string_view value);

// Keys of all gates begin so.
inline constexpr std::string_view kGatesPrefix = "B";

std::string GateStateKey(InodeId directory);
// The directory of a gate's state; nullopt: the key is another one.
std::optional<InodeId> DirectoryOfStateKey(std::string_view key);

// The key of a rank's record is this prefix and the rank's name.
std::string GateRanksPrefix(InodeId directory, uint64_t try_id);
std::string GateRankName(const std::optional<unsigned>& rank, std::string_view id);
// The number of a rank from its name; nullopt: it has none.
std::optional<unsigned> NumberOfRank(std::string_view name);

}  // namespace cairnfs::control
