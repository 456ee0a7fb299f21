// bench_floor: a minimal FUSE program that receives, hashes and writes. What CairnFS, which does more, is measured by.
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <csignal>

#include "transport.h"

int main(int argc, char** argv) {
  using namespace cairnfs::bench;
  FloorOptions options;
  CLI::App app("A FUSE filesystem of one file without a name: receives, hashes and writes. For tools/bench.");
  app.add_option("mount_point", options.mount_point)->required();
  app.add_option("--pack", options.pack_path, "the file that takes the data; without it nothing is written");
  app.add_option("--pack-bytes", options.pack_bytes, "its size, allocated at once");
  app.add_option("--buffers", options.buffer_count, "of a megabyte each");
  app.add_option("--hash-threads", options.hash_threads);
  app.add_option("--receive-threads", options.receive_threads);
  app.add_flag("--hash", options.hash, "BLAKE3 over every request");
  app.add_flag("--drop-known", options.drop_known, "do not write what was written before");
  app.add_flag("--answer-from-all", options.answer_from_all, "reads come from all buffers in turn, not from one");
  app.add_flag("--fresh", options.fresh_pack, "new blocks for the pack each time the file is removed");
  CLI11_PARSE(app, argc, argv);

  prctl(PR_SET_PDEATHSIG, SIGKILL);  // never outlives the driver
  FloorBuffers buffers(options.buffer_count);
  Pack pack(options, buffers);
  return ServeFloor(options, buffers, pack);
}
