#include "client/load_request.h"

#include <algorithm>
#include <string>
#include <vector>

#include "client/host_memory.h"

namespace cairnfs::client {
namespace {

std::string NameOfRead(const cairnfs_load_request& request, size_t number) {
  std::string text = std::string(request.path) + ": read " + std::to_string(number);
  const char* name = request.reads[number].name;
  if (name != nullptr) text += std::string(" (tensor '") + name + "')";
  return text;
}

Status CheckRead(const cairnfs_read& read, uint64_t file_bytes, const HostMemory& host, Devices& devices,
                 const std::string& what) {
  if (read.device < CAIRNFS_HOST) {
    return InvalidArgument(what + ": there is no device " + std::to_string(read.device));
  }
  if (read.offset > file_bytes || read.bytes > file_bytes - read.offset) {
    return MakeError(ErrorCode::kCorrupt, what + ": the file has " + std::to_string(file_bytes) + " bytes, and " +
                                              std::to_string(read.bytes) + " at offset " + std::to_string(read.offset) +
                                              " are asked for");
  }
  if (read.device == CAIRNFS_HOST) return host.Check(read.destination, read.bytes, HostMemory::Use::kWrite, what);
  if (read.bytes == 0) return {};
  const Result<Device*> device = devices.Get(read.device);
  if (!device.ok()) return device.error().WithContext(what);
  return (*device)->CheckMemory(read.destination, read.bytes, what);
}

// Of destinations, whatever device they are of.
Status CheckApart(const cairnfs_load_request& request) {
  struct Range {
    uint64_t begin, end;
    size_t number;
  };
  std::vector<Range> ranges;
  for (size_t i = 0; i < request.read_count; i++) {
    if (request.reads[i].bytes == 0) continue;
    const auto begin = reinterpret_cast<uint64_t>(request.reads[i].destination);
    ranges.push_back({begin, begin + request.reads[i].bytes, i});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); i++) {
    if (ranges[i].begin < ranges[i - 1].end) {
      return InvalidArgument(NameOfRead(request, ranges[i].number) + ": its destination overlaps that of read " +
                             std::to_string(ranges[i - 1].number));
    }
  }
  return {};
}

}  // namespace

Status CheckReads(const cairnfs_load_request& request, uint64_t file_bytes, Devices& devices) {
  if (request.reads == nullptr && request.read_count > 0) {
    return InvalidArgument("reads is NULL and read_count is not 0");
  }
  const HostMemory host = HostMemory::Now();
  for (size_t i = 0; i < request.read_count; i++) {
    CAIRNFS_RETURN_IF_ERROR(CheckRead(request.reads[i], file_bytes, host, devices, NameOfRead(request, i)));
  }
  return CheckApart(request);
}

}  // namespace cairnfs::client
