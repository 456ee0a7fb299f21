// `cairnfs seal` and `unseal`: nothing below a sealed directory can be changed.
#pragma once

#include <string>

#include "base/result.h"

namespace cairnfs::tools {

struct SealCommand {
  std::string path;
  bool commits = false;  // not the directory itself, but what is renamed into it from now on
  bool json = false;
};

int RunSeal(const SealCommand& command);
int RunUnseal(const SealCommand& command);

// What a value of CAIRNFS_XATTR_SEALED says, for people; empty: "not sealed".
std::string SealSentence(const std::string& value);

// Has the next rename of the directory seal it. kPermission: the caller is neither its owner nor root.
Status SealAtCommit(const std::string& path);

}  // namespace cairnfs::tools
