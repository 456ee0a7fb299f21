// The commands that the driver gives to the load generator, one per line, and what they answer.
//
// A line is words with tabs between them. The answer is one line of JSON: an object of numbers, or {"error": "..."}.
// Times are in seconds and end in _s. One process serves a whole run, so that its memory is warm.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"

namespace cairnfs::bench {

// What went wrong, in words for the user. Caught in the command loop only.
class LoadError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// Throws LoadError with "what: strerror(errno)".
[[noreturn]] void ThrowErrno(const std::string& what);

// The words after the command's name. Reading past the end, or text where a number belongs, throws LoadError.
class Arguments {
 public:
  explicit Arguments(std::vector<std::string> words) : words_(std::move(words)) {}
  const std::string& Text();
  uint64_t Number();
  bool AtEnd() const { return next_ == words_.size(); }

 private:
  std::vector<std::string> words_;
  size_t next_ = 0;
};

using Answer = std::vector<std::pair<std::string, double>>;

// The source of all data that is saved: allocated and touched once.
struct LoadState {
  MutableByteSpan buffer;
  // A part of the buffer; throws LoadError when it is not all there.
  MutableByteSpan Part(uint64_t offset, uint64_t size) const;
};

using Command = std::function<Answer(LoadState&, Arguments&)>;
using CommandTable = std::map<std::string, Command, std::less<>>;
void AddMemoryCommands(CommandTable& table);
void AddSavingCommands(CommandTable& table);
void AddReadingCommands(CommandTable& table);
void AddNameCommands(CommandTable& table);

class Stopwatch {
 public:
  double Seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// A file descriptor that is closed at the end of its life.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, unsigned mode = 0644);  // throws LoadError
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void Sync();
  void Close();  // throws LoadError when close(2) reports a failed write

 private:
  const std::string path_;
  int fd_;
};

void WriteAll(int fd, ByteSpan bytes);  // one write(2) unless the kernel takes less
void SyncDirectory(const std::string& path);

}  // namespace cairnfs::bench
