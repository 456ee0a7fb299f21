#include "retention/glob.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <utility>

namespace cairnfs::retention {
namespace {

constexpr int64_t kGlobMemoryBytes = 1 << 20;

Error WrongGlob(std::string_view pattern, std::string_view why) {
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("the pattern '{}' of names {}; right is one as 'train_ds*'", pattern, why));
}

std::string Quoted(char byte) { return re2::RE2::QuoteMeta(std::string(1, byte)); }

// REQUIRES: what stands in brackets, and so is not empty.
std::string ClassOf(std::string_view inside) {
  std::string text = "[";
  if (inside[0] == '!' || inside[0] == '^') {
    text += '^';
    inside.remove_prefix(1);
  }
  for (const char byte : inside) text += byte == '-' ? "-" : Quoted(byte);
  return text + "]";
}

// What is no pattern as in glob(7), and would match something else than meant; empty: nothing is.
std::string_view WhyNoClass(std::string_view inside) {
  if (inside.find('\\') != inside.npos) return "has a \\ in brackets, where nothing is quoted: a ] comes first in them";
  for (const std::string_view special : {"[:", "[.", "[="}) {
    if (inside.find(special) != inside.npos) return "has a class as [:digit:]: write it out, as [0-9]";
  }
  return {};
}

// As an expression of RE2, whose matching is linear. kInvalidArgument: the words of WrongGlob.
Result<std::string> ExpressionOf(std::string_view pattern) {
  std::string text;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '*') {
      text += ".*";
    } else if (pattern[i] == '?') {
      text += '.';
    } else if (pattern[i] == '[') {
      // A ] that comes first stands for itself.
      const size_t first = i + 1 + (pattern.substr(i + 1).find_first_of("!^") == 0 ? 1 : 0);
      const size_t end = pattern.find(']', first + 1);
      if (end == pattern.npos) return WrongGlob(pattern, "has a [ without a ] (\\[ stands for itself)");
      const std::string_view inside = pattern.substr(i + 1, end - i - 1);
      if (const auto why = WhyNoClass(inside); !why.empty()) return WrongGlob(pattern, why);
      text += ClassOf(inside);
      i = end;
    } else if (pattern[i] == '{' || pattern[i] == '}') {
      return WrongGlob(pattern, "has braces: give one pattern for each of them (\\{ stands for itself)");
    } else {
      if (pattern[i] == '\\' && i + 1 < pattern.size()) ++i;
      text += Quoted(pattern[i]);
    }
  }
  return text;
}

}  // namespace

struct Glob::Expression {
  explicit Expression(const std::string& text, const re2::RE2::Options& options) : re2(text, options) {}
  re2::RE2 re2;
};

Glob::Glob(std::unique_ptr<Expression> expression) : expression_(std::move(expression)) {}
Glob::~Glob() = default;
Glob::Glob(Glob&&) noexcept = default;

Result<Glob> Glob::Parse(std::string_view pattern) {
  if (pattern.empty()) return WrongGlob(pattern, "is empty, and matches nothing");
  if (pattern.size() > kGlobBytesMax) return WrongGlob(pattern, fmt::format("has more than {} bytes", kGlobBytesMax));
  if (pattern.find('/') != pattern.npos) return WrongGlob(pattern, "has a slash, which no name has");
  if (pattern.find('\0') != pattern.npos) return WrongGlob(pattern, "has a byte 0, which no name has");
  CAIRNFS_ASSIGN_OR_RETURN(const std::string text, ExpressionOf(pattern));
  re2::RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kGlobMemoryBytes);
  options.set_dot_nl(true);
  options.set_encoding(re2::RE2::Options::EncodingLatin1);  // names are bytes
  auto expression = std::make_unique<Expression>(text, options);
  if (!expression->re2.ok()) return WrongGlob(pattern, "cannot be taken: " + expression->re2.error());
  return Glob(std::move(expression));
}

bool Glob::Matches(std::string_view name) const {
  return re2::RE2::FullMatch(re2::StringPiece(name.data(), name.size()), expression_->re2);
}

Result<std::vector<Glob>> ParseGlobs(const std::vector<std::string>& patterns) {
  if (patterns.size() > kGlobsMax) {
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("a rule has at most {} patterns of names", kGlobsMax));
  }
  std::vector<Glob> globs;
  for (const std::string& pattern : patterns) {
    CAIRNFS_ASSIGN_OR_RETURN(Glob glob, Glob::Parse(pattern));
    globs.push_back(std::move(glob));
  }
  return globs;
}

bool MatchesAny(const std::vector<Glob>& globs, std::string_view name) {
  return std::any_of(globs.begin(), globs.end(), [&](const Glob& glob) { return glob.Matches(name); });
}

}  // namespace cairnfs::retention
