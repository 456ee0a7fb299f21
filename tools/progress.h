// A line on the terminal that says how far a command is. It is rewritten in place, and gone when the command is done.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/clock.h"

namespace cairnfs::tools {

class ProgressLine {
 public:
  // Shows nothing where stderr is no terminal, and nothing when `is_wanted` is false.
  explicit ProgressLine(bool is_wanted);
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  bool is_shown() const { return is_terminal_; }
  void Show(const std::string& text);
  void Clear();

 private:
  const bool is_terminal_;
  bool has_text_ = false;
};

// ", about 3 min left" for what was done in that time; empty where too little is done to tell, or all of it.
std::string LeftText(uint64_t done, uint64_t total, Clock::duration elapsed);

// How far something has come, and how long the rest will take: "1.0 GiB of 4.0 GiB (25 %), about 3 min left".
// `rate`: bytes in each of the last seconds; 0: it is not known, and the rate since the begin says how long.
std::string ShareText(uint64_t bytes_done, uint64_t bytes_total, Clock::duration elapsed, double rate = 0);

}  // namespace cairnfs::tools
