// Three hosts that keep names, for tests of the register and of what stands on it.
#pragma once

#include <string>

#include "kv/names_register.h"

namespace cairnfs::kv {

inline constexpr size_t kHosts = 3;
inline Member MemberOf(size_t host) { return {"node" + std::to_string(host), "host" + std::to_string(host) + ":7402"}; }
inline Error Lost() { return MakeError(ErrorCode::kUnavailable, "lost"); }

}  // namespace cairnfs::kv
