#include "open_below.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace cairnfs::tools {

OpenedDirectory OpenBelow(int parent, const std::string& name) {
  open_how how = {};
  how.flags = O_RDONLY | O_CLOEXEC | O_DIRECTORY | O_NOFOLLOW;
  how.resolve = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS;
  const int file = static_cast<int>(syscall(SYS_openat2, parent, name.c_str(), &how, sizeof how));
  DIR* opened = file < 0 ? nullptr : fdopendir(file);
  if (file >= 0 && opened == nullptr) close(file);
  return {opened, &closedir};
}

}  // namespace cairnfs::tools
