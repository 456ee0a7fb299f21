// How places that any user may take are shared out.
#pragma once

#include <cstddef>

namespace cairnfs {

// Whether who has `own` of the `taken` places may take one more, of `places` in all: at most twice as many as are free.
// So nobody takes all, and a user who comes later finds some.
constexpr bool HasShare(size_t own, size_t taken, size_t places) {
  return taken < places && own < 2 * (places - taken);
}

}  // namespace cairnfs
