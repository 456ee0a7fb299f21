// Reading back: one reader, several processes, mappings; and comparing with what was saved.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "commands.h"
#include "content.h"

namespace cairnfs::bench {
namespace {

// Reads the file to its end into one piece of memory again and again; the number of bytes.
uint64_t ReadFile(const std::string& path, MutableByteSpan memory) {
  Descriptor file(path, O_RDONLY);
  uint64_t total = 0;
  while (true) {
    ssize_t count = read(file.get(), memory.data(), memory.size());
    if (count < 0) ThrowErrno("read of " + path);
    if (count == 0) return total;
    total += static_cast<uint64_t>(count);
  }
}

// Reads every word of the file through a private mapping.
uint64_t ReadMapped(const std::string& path) {
  Descriptor file(path, O_RDONLY);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) ThrowErrno(path);
  auto size = static_cast<size_t>(status.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) ThrowErrno("mmap of " + path);
  const auto* words = static_cast<const uint64_t*>(memory);
  uint64_t sum = 0;
  for (size_t i = 0; i < size / sizeof(uint64_t); i++) sum += words[i];
  volatile uint64_t kept = sum;  // or the compiler reads nothing
  (void)kept;
  munmap(memory, size);
  return size;
}

MutableByteSpan Scratch(size_t size) {
  static MutableByteSpan scratch;
  if (scratch.size() < size) scratch = MapTouched(size);
  return scratch.first(size);
}

// read PATH BLOCK_BYTES
Answer Read(LoadState&, Arguments& arguments) {
  const std::string& path = arguments.Text();
  MutableByteSpan memory = Scratch(arguments.Number());
  Stopwatch total;
  uint64_t bytes = ReadFile(path, memory);
  return {{"total_s", total.Seconds()}, {"bytes", static_cast<double>(bytes)}};
}

// Runs `job` in so many processes, which all start when the last one is ready; the seconds until the last one ended.
template <typename Job>
double InProcesses(uint64_t process_count, const Job& job) {
  int ready[2];
  int start[2];
  if (pipe(ready) != 0 || pipe(start) != 0) ThrowErrno("pipe");
  std::vector<pid_t> children;
  for (uint64_t i = 0; i < process_count; i++) {
    pid_t child = fork();
    if (child < 0) ThrowErrno("fork");
    if (child == 0) {
      close(start[1]);
      job(ready[1], start[0]);  // does not return
    }
    children.push_back(child);
  }
  close(ready[1]);
  close(start[0]);
  char byte;
  for (uint64_t i = 0; i < process_count; i++) {
    if (read(ready[0], &byte, 1) != 1) break;  // a child died: its status tells
  }
  Stopwatch total;
  close(start[1]);
  bool failed = false;
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed |= status != 0;
  }
  double seconds = total.Seconds();
  close(ready[0]);
  if (failed) throw LoadError("a reading process failed");
  return seconds;
}

template <typename Job>
[[noreturn]] void AsChild(int ready, int start, const Job& job) {
  char byte = 0;
  bool good = write(ready, &byte, 1) == 1 && read(start, &byte, 1) == 0;
  try {
    if (good) job();
  } catch (const LoadError& error) {
    dprintf(STDERR_FILENO, "bench_load: %s\n", error.what());
    good = false;
  }
  _exit(good ? 0 : 1);
}

// read_processes PATH BLOCK_BYTES PROCESSES
Answer ReadProcesses(LoadState&, Arguments& arguments) {
  const std::string& path = arguments.Text();
  uint64_t block_bytes = arguments.Number();
  double seconds = InProcesses(arguments.Number(), [&](int ready, int start) {
    MutableByteSpan memory = MapTouched(block_bytes);
    AsChild(ready, start, [&] { ReadFile(path, memory); });
  });
  return {{"total_s", seconds}};
}

// map_processes PATH PROCESSES
Answer MapProcesses(LoadState&, Arguments& arguments) {
  const std::string& path = arguments.Text();
  double seconds =
      InProcesses(arguments.Number(), [&](int ready, int start) { AsChild(ready, start, [&] { ReadMapped(path); }); });
  return {{"total_s", seconds}};
}

// compare PATH OFFSET BYTES: 1 when the file is exactly that part of the buffer.
Answer Compare(LoadState& state, Arguments& arguments) {
  const std::string& path = arguments.Text();
  uint64_t offset = arguments.Number();
  ByteSpan expected = state.Part(offset, arguments.Number());
  MutableByteSpan memory = Scratch(8 * kMiB);
  Descriptor file(path, O_RDONLY);
  while (true) {
    ssize_t count = read(file.get(), memory.data(), memory.size());
    if (count < 0) ThrowErrno("read of " + path);
    auto size = static_cast<size_t>(count);
    if (size == 0 || size > expected.size()) return {{"equal", size == 0 && expected.empty() ? 1 : 0}};
    if (std::memcmp(memory.data(), expected.data(), size) != 0) return {{"equal", 0}};
    expected = expected.subspan(size);
  }
}

}  // namespace

void AddReadingCommands(CommandTable& table) {
  table["read"] = Read;
  table["read_processes"] = ReadProcesses;
  table["map_processes"] = MapProcesses;
  table["compare"] = Compare;
}

}  // namespace cairnfs::bench
