#include "base/random_bytes.h"

#include <sys/random.h>

namespace cairnfs {

std::string RandomBytes(size_t size) {
  std::string bytes(size, '\0');
  // A signal may cut it short, early in a boot.
  while (getrandom(bytes.data(), size, 0) != static_cast<ssize_t>(size)) {
  }
  return bytes;
}

}  // namespace cairnfs
