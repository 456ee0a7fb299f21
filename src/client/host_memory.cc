#include "client/host_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/types.h"
#include "client/descriptor.h"

namespace cairnfs::client {
namespace {

// Empty where it cannot be read as a whole. No stream of the library: those take a lack of memory for the file's end.
std::string ReadMaps() {
  std::string text(256 * kKiB, '\0');
  const Descriptor file(open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  if (file.number() < 0) return {};
  ssize_t got = 0;
  size_t bytes = 0;
  do {
    bytes += static_cast<size_t>(got);
    if (bytes == text.size()) text.resize(2 * bytes);
    got = read(file.number(), text.data() + bytes, text.size() - bytes);
  } while (got > 0);
  text.resize(got < 0 ? 0 : bytes);
  return text;
}

}  // namespace

// "55e0a2c00000-55e0a2c21000 rw-p 00000000 00:00 0 ..."
void HostMemory::AddLine(std::string_view line) {
  Mapping mapping{};
  const char* const end = line.data() + line.size();
  const auto begin_read = std::from_chars(line.data(), end, mapping.range.begin, 16);
  if (begin_read.ptr == end || *begin_read.ptr != '-') return;
  const auto end_read = std::from_chars(begin_read.ptr + 1, end, mapping.range.end, 16);
  if (end - end_read.ptr < 3) return;
  mapping.may_read = end_read.ptr[1] == 'r';
  mapping.may_write = end_read.ptr[2] == 'w';
  mappings_.push_back(mapping);
}

HostMemory HostMemory::Now() {
  HostMemory memory;
  const std::string text = ReadMaps();
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    memory.AddLine(std::string_view(text).substr(at, end - at));
    at = end + 1;
  }
  memory.is_known_ = !memory.mappings_.empty();
  return memory;
}

Status HostMemory::Check(const void* data, uint64_t bytes, Use use, const std::string& what) const {
  if (bytes == 0) return {};
  if (data == nullptr) return MakeError(ErrorCode::kStale, what + ": the pointer is NULL");
  const auto begin = reinterpret_cast<uint64_t>(data);
  if (bytes > UINT64_MAX - begin) {
    return MakeError(ErrorCode::kStale, what + ": the memory ends past the address space");
  }
  if (!is_known_) return {};
  bool is_mapped = true;
  const uint64_t good = CoveredBytes(begin, bytes, [&](uint64_t address) -> std::optional<AddressRange> {
    const auto next = std::upper_bound(mappings_.begin(), mappings_.end(), address,
                                       [](uint64_t at, const Mapping& mapping) { return at < mapping.range.begin; });
    is_mapped = next != mappings_.begin() && address < std::prev(next)->range.end;
    if (!is_mapped) return std::nullopt;
    const Mapping& mapping = *std::prev(next);
    return (use == Use::kRead ? mapping.may_read : mapping.may_write) ? std::optional(mapping.range) : std::nullopt;
  });
  if (good == bytes) return {};
  const std::string text = what + ": its memory of " + std::to_string(bytes) + " bytes ";
  if (!is_mapped) return MakeError(ErrorCode::kStale, text + "is not mapped, or not all of it; was it freed?");
  return MakeError(ErrorCode::kStale,
                   text + "may not be " + (use == Use::kRead ? "read" : "written") + ", or not all of it");
}

}  // namespace cairnfs::client
