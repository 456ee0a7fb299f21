#include "fuse/node_ids.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace cairnfs::fuse {
namespace {

// False too when the message ends before.
bool TakeBit(MutableByteSpan request, size_t offset) {
  uint64_t node = 0;
  if (offset + sizeof node > request.size()) return false;
  std::memcpy(&node, request.data() + offset, sizeof node);
  if ((node & kBesideBit) == 0) return false;
  node &= ~kBesideBit;
  std::memcpy(request.data() + offset, &node, sizeof node);
  return true;
}

void TakeForgetBits(MutableByteSpan request) {
  constexpr size_t kFirst = sizeof(fuse_in_header) + sizeof(fuse_batch_forget_in);
  for (size_t offset = kFirst; offset < request.size(); offset += sizeof(fuse_forget_one)) {
    TakeBit(request, offset + offsetof(fuse_forget_one, nodeid));
  }
}

}  // namespace

bool TakeBesideBits(MutableByteSpan request) {
  if (request.size() < sizeof(fuse_in_header)) return false;
  fuse_in_header header;
  std::memcpy(&header, request.data(), sizeof header);
  switch (header.opcode) {
    case FUSE_LINK: TakeBit(request, sizeof header + offsetof(fuse_link_in, oldnodeid)); break;
    case FUSE_COPY_FILE_RANGE: TakeBit(request, sizeof header + offsetof(fuse_copy_file_range_in, nodeid_out)); break;
    case FUSE_BATCH_FORGET: TakeForgetBits(request); break;
    default: break;  // the others name directories in their bodies, or nothing
  }
  return TakeBit(request, offsetof(fuse_in_header, nodeid));
}

}  // namespace cairnfs::fuse
