// How the daemon's malloc keeps memory: jemalloc, which is linked in its place (docs/decisions/allocator.md).
#include <jemalloc/jemalloc.h>

// One arena, since each keeps what was freed in it, and threads have caches of their own before it. What lies unused
// for ten seconds (jemalloc's default) goes back to the system by a thread, or an idle daemon would keep it for ever.
// Read before main; MALLOC_CONF in the environment goes before it.
const char* malloc_conf = "narenas:1,background_thread:true,max_background_threads:1";
