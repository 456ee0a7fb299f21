// What the command line prints: text for people, JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "control.pb.h"

namespace cairnfs::tools {

// To stdout, at once. Where that fails a sentence on stderr says so, once, and main() ends with kExitFailed.
void Print(const std::string& text);
bool HasOutputFailed();  // of any Print before
std::string StatusText(const control::StatusReply& status);
std::string StatusLine(std::string_view name, const std::string& value);  // one more of its lines
nlohmann::ordered_json StatusJson(const control::StatusReply& status);
// One line of progress. `first`: what was told first of the phase, so long ago.
std::string GcLine(const control::GcProgress& progress, const control::GcProgress& first, Clock::duration elapsed);
std::string GcText(const control::GcProgress& progress);  // the end of it
std::string GcJson(const control::GcProgress& progress);
// `last_end`: what the directory's LOCK tells of its last end, empty after a clean one; nullopt beside a daemon.
std::string CheckText(const control::CheckReply& reply, const std::optional<std::string>& last_end);
std::string CheckJson(const control::CheckReply& reply, const std::optional<std::string>& last_end);

}  // namespace cairnfs::tools
