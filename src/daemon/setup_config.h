// The configuration that `cairnfs cluster init` and `join` write for a host.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "daemon/config.h"

namespace cairnfs::daemon {

// A text as TOML has it. REQUIRES (unchecked): it holds no control character.
std::string QuotedText(std::string_view text);

// To be checked before anything is made: the next mount would refuse a configuration that holds other texts.
// kInvalidArgument.
Status CheckTexts(const Config& config);
// kAlreadyExists: there is one, and nobody allowed to overwrite it.
Status CheckFileIsFree(const std::string& file, bool overwrite);
// Durably, in one step, with its folder. `made_by`: the command, "init" or "join".
Status WriteConfig(const std::string& file, const Config& config, std::string_view made_by);

}  // namespace cairnfs::daemon
