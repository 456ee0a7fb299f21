// The tests of a room lie in one program, which compiles sooner than one for each of its files. Each file still runs in
// a process of its own: the program is told which.
#pragma once

namespace cairnfs {

// gtest's main, which takes the arguments `--files A,B`, to run the tests that lie in files of these names and no
// others, and then `--of A,B,C,...`, all files with tests that the program has: it fails where one is not among them,
// which nobody would run. Returns the exit code.
int RunTests(int argument_count, char** arguments);

}  // namespace cairnfs
