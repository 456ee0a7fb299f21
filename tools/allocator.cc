// How the daemon's malloc keeps memory: jemalloc, which is linked in its place (docs/decisions/allocator.md).
#include <jemalloc/jemalloc.h>

// One arena, since each keeps the memory that was freed in it, and threads have caches of their own in front of it. A
// thread gives memory back to the system that was unused for ten seconds (jemalloc's default); without that thread an
// idle daemon would keep it for ever. Read before main; MALLOC_CONF in the environment overrides it.
const char* malloc_conf = "narenas:1,background_thread:true,max_background_threads:1";
