// What is told of a checkpoint and its commit: for people, and as JSON (docs/commits.md).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "checkpoints.h"

namespace cairnfs::tools {

std::string WhenText(double seconds);  // since 1970
// Of a number of the commit; "-": it has none, or it is not known.
std::string CountText(const nlohmann::ordered_json& commit, const char* key);
std::string BytesText(const nlohmann::ordered_json& commit, const char* key);
std::string SecondsText(const nlohmann::ordered_json& commit, const char* key);
std::string CommitterText(const nlohmann::ordered_json& commit);  // host, user, command
std::string CommitText(const nlohmann::ordered_json& commit);     // one line
nlohmann::ordered_json CheckpointJson(const Checkpoint& checkpoint);

}  // namespace cairnfs::tools
