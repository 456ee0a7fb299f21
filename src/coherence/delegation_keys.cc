#include "coherence/delegation_keys.h"

#include "base/coding.h"

namespace cairnfs::coherence {

std::string DelegationPrefix(InodeId directory) { return Encoder().U8('L').BigEndianU64(directory.value).Take(); }
std::string DelegationKey(InodeId directory, const cluster::NodeId& holder) {
  return Encoder().U8('L').BigEndianU64(directory.value).Text(holder.AsKey()).Take();
}
std::string RecallPrefix(const cluster::NodeId& holder) { return Encoder().U8('Q').Text(holder.AsKey()).Take(); }
std::string RecallKey(const cluster::NodeId& holder, InodeId directory) {
  return Encoder().U8('Q').Text(holder.AsKey()).BigEndianU64(directory.value).Take();
}

}  // namespace cairnfs::coherence
