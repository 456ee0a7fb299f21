// What a saver knows of the file that it saved last.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "client/file_identity.h"

namespace cairnfs::client {

struct SavedTensor {
  uint64_t offset;  // in the file
  uint64_t bytes;
  int32_t device;         // where its digests are
  uint64_t first_digest;  // of a device: in its old digests (device_side.h); of the host: in host_digests
};

struct Fingerprints {
  FileIdentity file;
  std::unordered_map<std::string, SavedTensor> tensors;  // by name
  std::vector<Digest> host_digests;
};

}  // namespace cairnfs::client
