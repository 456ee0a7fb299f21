/* Put before a program with LD_PRELOAD: its copy_file_range(2) does what SHORT_COPIES says.
 *   short    it copies at most 100000 bytes each time
 *   zero     it copies half of what was asked for, and then says that the file has ended
 *   NUMBER   it copies half of what was asked for, and then fails with this errno */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

ssize_t copy_file_range(int from, off64_t* from_offset, int to, off64_t* to_offset, size_t bytes, unsigned flags) {
  ssize_t (*real)(int, off64_t*, int, off64_t*, size_t, unsigned) = dlsym(RTLD_NEXT, "copy_file_range");
  static __thread int calls = 0;
  const char* mode = getenv("SHORT_COPIES");
  if (mode == NULL) return real(from, from_offset, to, to_offset, bytes, flags);
  if (strcmp(mode, "short") == 0) {
    return real(from, from_offset, to, to_offset, bytes < 100000 ? bytes : 100000, flags);
  }
  if (calls++ % 2 == 0 && bytes > 1) return real(from, from_offset, to, to_offset, bytes / 2, flags);
  if (strcmp(mode, "zero") == 0) return 0;
  errno = atoi(mode);
  return -1;
}
