// The attributes of a checkpoint that retention knows, as text: pins, holds, metrics. And those of a directory.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::retention {

// Begins the names under which retention removes checkpoints; sixteen letters follow, and perhaps more. It has no
// digit, so it is the name of no checkpoint, whatever the pattern.
inline constexpr std::string_view kGoingPrefix = ".cairnfs-going-";
inline constexpr size_t kGoingLetters = 16;
bool IsGoingName(std::string_view name);
// Such a name; of a checkpoint whose name is not too long it tells that. REQUIRES: kGoingLetters letters from a to z.
std::string GoingName(std::string_view letters, std::string_view name);
// nullopt: it does not tell.
std::optional<std::string> NameBeforeGoing(std::string_view going);

// The value of CAIRNFS_XATTR_REMOVING: the name, and after a slash each pattern of what stays in it.
struct RemovalMark {
  std::string going;
  std::vector<std::string> keep_inside = {};  // of Glob
};
std::string RemovalMarkText(const RemovalMark& mark);
// kInvalidArgument: it is no such value, or something is to stay in it and the name does not tell the name before.
Result<RemovalMark> ParseRemovalMark(std::string_view value);

bool IsMetric(std::string_view name);  // the name of an attribute
// Whether retention has an attribute of this name.
bool IsRetentionAttribute(std::string_view name);
// Whether this value of CAIRNFS_XATTR_SEALED says that a directory cannot be changed now.
bool IsSealed(std::string_view value);
// kInvalidArgument says what the value is to be. REQUIRES: IsRetentionAttribute(name).
Status CheckValue(std::string_view name, std::string_view value);

// Whether arrays and objects in the JSON text lie at most `levels` deep. What lies deeper overflows the stack of who
// copies or prints it.
bool IsShallowJson(std::string_view text, int levels);
// The text with NaN, Infinity and -Infinity, which Python writes and JSON does not have, as null.
std::string WithoutNan(std::string_view text);

Result<Timestamp> ParseHeldUntil(std::string_view value);  // whole seconds since 1970
std::string HeldUntilText(const Timestamp& until);         // rounded down
Result<double> ParseMetric(std::string_view value);        // a finite number

}  // namespace cairnfs::retention
