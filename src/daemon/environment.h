// The environment of a daemon: what of its starter's it keeps.
#pragma once

#include <string_view>

namespace cairnfs::daemon {

// Whether a daemon keeps the variable ("NAME=VALUE"): those that it reads, and those that people set to debug it. All
// others are the starter's business: proxies of gRPC, libraries to load, keys of the user who called sudo.
bool IsPassedOn(std::string_view variable);

// Takes all others out of the environment of this process. What was loaded for them stays until it begins a program.
// REQUIRES (unchecked): no other thread looks at the environment.
void CleanEnvironment();

}  // namespace cairnfs::daemon
