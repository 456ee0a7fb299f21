// Which names are checkpoints, and of which step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cairnfs::retention {

// Any thread, also at once.
class StepPattern {
 public:
  // Empty: any name with a number in it, of which the last is the step. Else a regular expression of RE2
  // (https://github.com/google/re2/wiki/Syntax) that is to match a whole name, with one group, which is the step.
  // kInvalidArgument says what is wrong with it.
  static Result<StepPattern> Parse(const std::string& pattern);
  ~StepPattern();
  StepPattern(StepPattern&&) noexcept;

  // nullopt: the name is that of no checkpoint. kInvalidArgument: it would be, and its step is no whole number below
  // 2^63.
  Result<std::optional<uint64_t>> StepOf(std::string_view name) const;

 private:
  struct Expression;
  explicit StepPattern(std::unique_ptr<Expression> expression);
  std::unique_ptr<Expression> expression_;  // null: the last number
};

}  // namespace cairnfs::retention
