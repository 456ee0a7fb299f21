#include "cluster/finish_failures.h"

#include <algorithm>

#include "base/coding.h"

namespace cairnfs::cluster {
namespace {

constexpr size_t kFailuresMax = 10'000;
constexpr size_t kFailuresBytesFull = kMiB;  // well within what a caller accepts, however long paths and reasons are

}  // namespace

std::string EncodeFailures(const FinishFailures& failures) {
  size_t count = 0;
  for (size_t bytes = 0; count < std::min(failures.size(), kFailuresMax) && bytes < kFailuresBytesFull; ++count) {
    bytes += failures[count].path.size() + failures[count].why.size();
  }
  Encoder out;
  out.Varint(count);
  for (size_t i = 0; i < count; ++i) {
    std::string why = failures[i].why;
    if (i + 1 == count && count < failures.size()) {
      why += " (and so it is with " + std::to_string(failures.size() - count) + " more of its files)";
    }
    out.U64(failures[i].inode.value).LengthPrefixed(failures[i].path).LengthPrefixed(why);
  }
  return out.Take();
}

std::optional<FinishFailures> DecodeFailures(std::string_view head) {
  Decoder in(head);
  const uint64_t count = in.Varint();
  if (!in.ok() || count > kFailuresMax) return std::nullopt;
  FinishFailures failures;
  for (uint64_t i = 0; i < count && in.ok(); ++i) {
    PeerHandler::FinishFailure failure;
    failure.inode = InodeId{in.U64()};
    failure.path = in.LengthPrefixed();
    failure.why = in.LengthPrefixed();
    failures.push_back(std::move(failure));
  }
  if (!in.Finished()) return std::nullopt;
  return failures;
}

}  // namespace cairnfs::cluster
