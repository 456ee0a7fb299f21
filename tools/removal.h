// How retention removes a checkpoint: it first renames it to a name that no pattern matches, so that none lies there
// half removed under its own name. Then it marks it (CAIRNFS_XATTR_REMOVING): from there on it cannot get its name
// back. Then it removes what is below. With the rights of the caller, and past no symbolic link or mount.
//
// What matches a pattern of keep_inside stays right in it. The mark has these patterns, so that whoever goes on keeps
// the same, whatever the policy is by then. Nothing of it is moved: once all else is gone, the directory gets its name
// back, with the mark, by which it is a checkpoint no more.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "keeping.h"
#include "retention/glob.h"

namespace cairnfs::tools {

class Removal {
 public:
  // The current directory is that of the run. Names are those of directories right in it.
  // `keep_inside`: patterns of retention::Glob.
  Removal(OwnOpens own_opens, std::vector<std::string> keep_inside)
      : own_opens_(own_opens), keep_inside_(std::move(keep_inside)) {}

  struct Outcome {
    bool removed = false;
    std::string why_not = {};  // it stays, and that is no failure
  };
  // Removes the checkpoint, unless by now it is pinned, held or open, or the name is another inode's. An error says
  // what is left, and where. `also_asks`: once it has another name, which is handed in, this may say why it stays.
  using WhyItStaysToo = std::function<std::string(const std::string& name)>;
  Result<Outcome> Remove(const std::string& name, uint64_t inode, const WhyItStaysToo& also_asks = {}) const;

 private:
  Result<Outcome> MoveToTrash(const std::string& going) const;
  std::string BeginRemoval(const std::string& going, uint64_t inode) const;
  // Why it stays; empty: it may go.
  std::string WhyItStays(const std::string& name) const;

  const OwnOpens own_opens_;
  const std::vector<std::string> keep_inside_;
};

// How many entries right in the directory stay.
Result<size_t> CountKeptInside(const std::string& name, const std::vector<retention::Glob>& keep_inside);
// Whether what removes a checkpoint of this name can give it that back.
bool CanGetNameBack(const std::string& name);

// What a removal that was cut short has left in the current directory, or one that runs now has renamed.
struct LeftOver {
  enum class Next {
    kGoesOn,     // its removal has begun: it can be removed by anybody who may
    kComesBack,  // its removal has not begun, and its name is known: it is to get that back, and be judged anew
    kWaits,      // its removal has not begun, and another process may be about to remove it
    kIsTold,     // nobody can tell what it was: it is left to the user
  };
  std::string name;
  uint64_t inode = 0;
  Next next = Next::kIsTold;
  std::optional<std::string> name_before = {};
  std::vector<std::string> keep_inside = {};  // of one whose removal has begun
  std::string Sentence() const;               // for people
};
// `only_of`: what another user owns is only told.
Result<std::vector<LeftOver>> FindLeft(std::optional<uid_t> only_of);
// Whose of those are gone on with in a run of this owner that has a policy, or for who asks for it: what others have
// marked is none of its checkpoints; but in a run of root's, removals of anybody's may have been cut short.
inline std::optional<uid_t> LeftIn(uid_t owner) { return owner == 0 ? std::nullopt : std::optional(owner); }
// Goes on with them. `told`: a sentence for each. The first error, after all were tried.
Status TakeUpLeft(std::optional<uid_t> only_of, std::vector<std::string>& told);

}  // namespace cairnfs::tools
