// Patterns of names, as the shell has them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cairnfs::retention {

inline constexpr size_t kGlobBytesMax = 255;
inline constexpr size_t kGlobsMax = 16;  // of one rule

// Any thread, also at once.
class Glob {
 public:
  // It is to match a whole name: * stands for any bytes, also none and also a leading dot; ? for one byte; [a-z] and
  // [!a-z] for one that is among these, or not; \ before a byte for that one. Matching takes time that grows with the
  // name and the pattern, and not faster. kInvalidArgument says what would be right: of one that is empty, too long,
  // has a slash, a [ without an end, or what shells read in other ways (braces, [:digit:], \ in brackets).
  static Result<Glob> Parse(std::string_view pattern);
  ~Glob();
  Glob(Glob&&) noexcept;

  bool Matches(std::string_view name) const;

 private:
  struct Expression;
  explicit Glob(std::unique_ptr<Expression> expression);
  std::unique_ptr<Expression> expression_;
};

// kInvalidArgument: one of them is wrong, or there are more than kGlobsMax.
Result<std::vector<Glob>> ParseGlobs(const std::vector<std::string>& patterns);
bool MatchesAny(const std::vector<Glob>& globs, std::string_view name);

}  // namespace cairnfs::retention
