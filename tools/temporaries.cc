#include "temporaries.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "cairnfs/cairnfs.h"
#include "checkpoints.h"
#include "commands.h"
#include "daemon/size_text.h"
#include "keeping.h"
#include "open_below.h"

namespace cairnfs::tools {
namespace {

using retention::AbandonedRules;

Timestamp StampOf(const timespec& time) {
  return {.seconds = time.tv_sec, .nanoseconds = static_cast<uint32_t>(time.tv_nsec)};
}

// What says that a directory is not to go with the one that it lies in.
constexpr std::array kOwnLife = {CAIRNFS_XATTR_PINNED, CAIRNFS_XATTR_HELD_UNTIL, CAIRNFS_XATTR_RETAIN};

// Looks at all below a directory until something is later than is enough.
class LastWriteWalk {
 public:
  LastWriteWalk(Timestamp last, WalkLimits& limits) : last_(last), limits_(limits) {}
  Timestamp last() const { return last_; }

  Status Walk(DIR* directory, int depth) {
    for (errno = 0; const dirent* entry = readdir(directory); errno = 0) {
      if (IsDots(entry->d_name)) continue;
      CAIRNFS_RETURN_IF_ERROR(Look(dirfd(directory), entry->d_name, depth));
      if (last_ > limits_.enough) return {};
    }
    return errno == 0 ? Status() : Status(ErrnoError(errno, "it cannot be listed"));
  }

 private:
  Status Look(int parent, const std::string& name, int depth) {
    struct stat info = {};
    if (limits_.entries_max == 0) return MakeError(ErrorCode::kTooLarge, "too much lies below it: remove it yourself");
    --limits_.entries_max;
    if (fstatat(parent, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      return errno == ENOENT ? Status() : Status(ErrnoError(errno, "cannot look at " + name));
    }
    if (limits_.only_of && info.st_uid != *limits_.only_of) {
      return MakeError(ErrorCode::kBusy, name + " in it belongs to another user");
    }
    last_ = std::max({last_, StampOf(info.st_mtim), StampOf(info.st_ctim)});
    if (!S_ISDIR(info.st_mode) || last_ > limits_.enough) return {};
    if (depth == kOpenBelowLevelsMax) return MakeError(ErrorCode::kFailed, "directories lie too deep in it");
    const OpenedDirectory below = OpenBelow(parent, name);
    if (below == nullptr && errno == ENOENT) return {};
    if (below == nullptr && errno == EXDEV) return MakeError(ErrorCode::kBusy, name + " is a mount point");
    if (below == nullptr) return ErrnoError(errno, "cannot open " + name);
    for (const char* attribute : kOwnLife) {
      const bool has = fgetxattr(dirfd(below.get()), attribute, nullptr, 0) >= 0;
      if (has) return MakeError(ErrorCode::kBusy, fmt::format("{} in it has the attribute {}", name, attribute));
      if (errno != ENODATA && errno != ENOTSUP) return ErrnoError(errno, "cannot look at " + name);
    }
    return Walk(below.get(), depth + 1);
  }

  Timestamp last_;
  WalkLimits& limits_;
};

// Why it stays whatever was written below it, as far as that costs little to know; nothing: it may go.
std::optional<retention::Protection> FindProtection(const std::string& name, uid_t owner,
                                                    std::optional<uid_t> only_of) {
  retention::Protection protection = ReadProtection("./" + name);
  const auto own_policy = ReadAttribute(name, CAIRNFS_XATTR_RETAIN);
  if (only_of && owner != *only_of) {
    protection.unknown = "the owner of the policy does not own it";
  } else if (!own_policy.ok() || *own_policy) {
    protection.unknown = "it may be a run with a policy of its own";
  }
  const bool stays = retention::WhyItStays(protection, Clock::WallTime()).has_value();
  return stays ? std::optional(std::move(protection)) : std::nullopt;
}

// `limits`: also of those looked at before.
void LookAtTemporary(const struct stat& info, const Result<std::optional<nlohmann::ordered_json>>& commit,
                     WalkLimits& limits, std::string& silent, FoundTemporary& found) {
  const std::string& name = found.temporary.name;
  retention::Protection& protection = found.temporary;
  if (!commit.ok()) {
    protection.unknown = "whether it was committed cannot be told: " + commit.error().message;
  } else if (auto known = FindProtection(name, info.st_uid, limits.only_of)) {
    protection = *std::move(known);
  } else if (const auto written = LastWritten(name, limits); !written.ok()) {
    protection.unknown = "it is left alone: " + written.error().message;
  } else if (found.temporary.written = *written; *written <= limits.enough) {
    protection = ReadProtectionAndOpen("./" + name, OwnOpens::kMaybe, &silent);
    found.may_be_open = protection.open || !protection.unknown.empty();
  }
}

}  // namespace

Result<retention::AbandonedRule> ParseAbandoned(const std::string& text) {
  const size_t colon = text.rfind(':');
  const auto milliseconds = colon == text.npos ? Result<uint64_t>(InvalidArgument("it has no colon before the time"))
                                               : daemon::ParseDurationMs(std::string_view(text).substr(colon + 1));
  if (!milliseconds.ok()) {
    return InvalidArgument(fmt::format("--abandoned is to be PATTERN:TIME, as '*.tmp*:24h', not '{}': {}", text,
                                       milliseconds.error().message));
  }
  retention::AbandonedRule rule{.pattern = text.substr(0, colon),
                                .unwritten_for = std::chrono::seconds(*milliseconds / 1000)};
  CAIRNFS_RETURN_IF_ERROR(retention::CheckAbandoned({rule}));
  return rule;
}

Result<Timestamp> LastWritten(const std::string& name, WalkLimits& limits) {
  const OpenedDirectory top = OpenBelow(AT_FDCWD, name);
  struct stat info = {};
  if (top == nullptr || fstat(dirfd(top.get()), &info) != 0) return ErrnoError(errno, "it cannot be opened");
  LastWriteWalk walk(StampOf(info.st_mtim), limits);
  if (walk.last() <= limits.enough) CAIRNFS_RETURN_IF_ERROR(walk.Walk(top.get(), 1));
  return walk.last();
}

Result<std::vector<FoundTemporary>> ListTemporaries(const AbandonedRules& rules, std::optional<uid_t> only_of,
                                                    Timestamp now, std::string& silent) {
  std::vector<FoundTemporary> found;
  if (rules.empty()) return found;
  const OpenedDirectory run = OpenBelow(AT_FDCWD, ".");
  if (run == nullptr) return ErrnoError(errno, "cannot list the directory");
  WalkLimits limits{.enough = {}, .only_of = only_of};
  for (errno = 0; const dirent* entry = readdir(run.get()); errno = 0) {
    const std::string name = entry->d_name;
    struct stat info = {};
    const auto time = IsDots(name) ? std::nullopt : rules.TimeFor(name);
    if (!time || lstat(name.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) continue;
    const auto commit = ReadCommit(name);
    // What retention has left of a checkpoint is to stay.
    const auto left = ReadAttribute(name, CAIRNFS_XATTR_REMOVING);
    if ((commit.ok() && *commit) || (left.ok() && *left)) continue;
    FoundTemporary one{.inode = info.st_ino};
    one.temporary.name = name;
    limits.enough = {.seconds = now.seconds - time->count(), .nanoseconds = now.nanoseconds};
    if (left.ok()) {
      LookAtTemporary(info, commit, limits, silent, one);
    } else {
      one.temporary.unknown = "whether its removal has begun cannot be told: " + left.error().message;
    }
    found.push_back(std::move(one));
  }
  if (errno != 0) return ErrnoError(errno, "cannot list the directory");
  return found;
}

}  // namespace cairnfs::tools
