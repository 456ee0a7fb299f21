#include "client/loader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "client/descriptor.h"
#include "client/errors.h"
#include "client/host_memory.h"
#include "client/layout.h"
#include "client/saver.h"

namespace cairnfs::client {
namespace {

constexpr uint64_t kPartBytesMax = 4 * kMiB;
constexpr uint64_t kRingBytes = 64 * kMiB;

std::string NameOfRead(const cairnfs_load_request& request, size_t number) {
  std::string text = std::string(request.path) + ": read " + std::to_string(number);
  const char* name = request.reads[number].name;
  if (name != nullptr) text += std::string(" (tensor '") + name + "')";
  return text;
}

// kCorrupt: the file ends before.
Status ReadBytes(int descriptor, std::byte* to, uint64_t bytes, uint64_t offset, const char* path) {
  while (bytes > 0) {
    const ssize_t got = pread(descriptor, to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, std::string(path) + ": cannot be read at offset " + std::to_string(offset));
    if (got == 0) {
      return MakeError(ErrorCode::kCorrupt, std::string(path) + ": was cut short at offset " + std::to_string(offset));
    }
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Loader>> Loader::Open(const cairnfs_loader_options& options, Devices& devices) {
  CAIRNFS_RETURN_IF_ERROR(CheckOptions(options.readers, options.ring_bytes, "readers"));
  return std::unique_ptr<Loader>(new Loader(options, devices));
}

Loader::Loader(const cairnfs_loader_options& options, Devices& devices)
    : options_(options), readers_(ThreadsOf(options.readers)), devices_(devices), ring_(devices) {}

Loader::~Loader() {
  for (const auto& [number, streams] : streams_) {
    const Result<Device*> device = devices_.Get(number);
    for (StreamHandle stream : streams) {
      (void)(*device)->WaitForStream(stream);  // one that read nothing may still wait for the caller's
      (*device)->DeleteStream(stream);
    }
  }
}

Status Loader::Check(const cairnfs_load_request& request, uint64_t file_bytes) {
  struct Range {
    uint64_t begin, end;
    size_t number;
  };
  const HostMemory host = HostMemory::Now();
  std::vector<Range> ranges;
  for (size_t i = 0; i < request.read_count; i++) {
    const cairnfs_read& read = request.reads[i];
    const std::string what = NameOfRead(request, i);
    if (read.device < CAIRNFS_HOST)
      return InvalidArgument(what + ": there is no device " + std::to_string(read.device));
    if (read.offset > file_bytes || read.bytes > file_bytes - read.offset) {
      return MakeError(ErrorCode::kCorrupt, what + ": the file has " + std::to_string(file_bytes) + " bytes, and " +
                                                std::to_string(read.bytes) + " at offset " +
                                                std::to_string(read.offset) + " are asked for");
    }
    if (read.bytes == 0) continue;
    if (read.device == CAIRNFS_HOST) {
      CAIRNFS_RETURN_IF_ERROR(host.Check(read.destination, read.bytes, HostMemory::Use::kWrite, what));
    } else {
      const Result<Device*> device = devices_.Get(read.device);
      if (!device.ok()) return device.error().WithContext(what);
      CAIRNFS_RETURN_IF_ERROR((*device)->CheckMemory(read.destination, read.bytes, what));
    }
    const auto begin = reinterpret_cast<uint64_t>(read.destination);
    ranges.push_back({begin, begin + read.bytes, i});
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

Status Loader::Load(const cairnfs_load_request& request) {
  CAIRNFS_RETURN_IF_ERROR(AbsolutePath(request.path, "path"));
  if (request.reads == nullptr && request.read_count > 0) {
    return InvalidArgument("reads is NULL and read_count is not 0");
  }
  const Descriptor file(open(request.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number() < 0) return FileError(errno, request.path);
  struct stat found {};
  if (fstat(file.number(), &found) != 0) return FileError(errno, request.path);
  if (!S_ISREG(found.st_mode)) return FileError(S_ISDIR(found.st_mode) ? EISDIR : EINVAL, request.path);
  CAIRNFS_RETURN_IF_ERROR(Check(request, static_cast<uint64_t>(found.st_size)));
  MutexLock lock(mutex_);
  CAIRNFS_RETURN_IF_ERROR(Prepare(request));
  return ReadAll(request, file.number());
}

// The library's streams of the devices that are read to, ordered after the caller's.
Status Loader::Prepare(const cairnfs_load_request& request) {
  CAIRNFS_ASSIGN_OR_RETURN(auto callers, StreamsByDevice(request.streams, request.stream_count));
  for (size_t i = 0; i < request.read_count; i++) {
    if (request.reads[i].device != CAIRNFS_HOST) callers.try_emplace(request.reads[i].device, nullptr);
  }
  for (const auto& [number, stream] : callers) {
    CAIRNFS_ASSIGN_OR_RETURN(Device * device, devices_.Get(number));
    CAIRNFS_RETURN_IF_ERROR(ring_.Reserve(options_.ring_bytes == 0 ? kRingBytes : options_.ring_bytes));
    auto& streams = streams_[number];
    streams.reserve(readers_);
    while (streams.size() < readers_) {
      CAIRNFS_ASSIGN_OR_RETURN(StreamHandle made, device->NewStream());
      streams.push_back(made);
    }
    CAIRNFS_ASSIGN_OR_RETURN(EventHandle event, device->Record(stream));
    Status status;
    for (StreamHandle own : streams) {
      if (status.ok()) status = device->StreamWaits(own, event);
    }
    device->DeleteEvent(event);
    CAIRNFS_RETURN_IF_ERROR(status);
  }
  return {};
}

Status Loader::ReadAll(const cairnfs_load_request& request, int descriptor) {
  const uint64_t part_bytes = std::max<uint64_t>(std::min(kPartBytesMax, ring_.PieceBytesMax()), kBlockBytes);
  FirstError error;
  Pending parts;
  CAIRNFS_ASSIGN_OR_RETURN(auto crew, Crew::Start(readers_, error));
  for (size_t i = 0; i < request.read_count; i++) {
    const cairnfs_read& read = request.reads[i];
    for (uint64_t at = 0; at < read.bytes; at += part_bytes) {
      const Part part{&read, at, std::min(part_bytes, read.bytes - at)};
      crew->Post(parts, [this, &request, part, descriptor](unsigned thread) {
        return ReadPart(request, part, descriptor, thread);
      });
    }
  }
  parts.Wait();
  return error.Get();
}

Status Loader::ReadPart(const cairnfs_load_request& request, const Part& part, int descriptor, unsigned thread) {
  const cairnfs_read& read = *part.read;
  if (read.device != CAIRNFS_HOST) {
    return ReadToDevice(request, part, descriptor, streams_.at(read.device)[thread]);
  }
  return ReadBytes(descriptor, static_cast<std::byte*>(read.destination) + part.at, part.bytes, read.offset + part.at,
                   request.path);
}

// While this thread waits for its copy, the others read.
Status Loader::ReadToDevice(const cairnfs_load_request& request, const Part& part, int descriptor,
                            StreamHandle stream) {
  const cairnfs_read& read = *part.read;
  CAIRNFS_ASSIGN_OR_RETURN(Device * device, devices_.Get(read.device));
  const Ring::Piece piece(ring_, part.bytes);
  CAIRNFS_RETURN_IF_ERROR(ReadBytes(descriptor, piece.data(), part.bytes, read.offset + part.at, request.path));
  const Status copied =
      device->CopyToDevice(static_cast<std::byte*>(read.destination) + part.at, piece.data(), part.bytes, stream);
  const Status waited = device->WaitForStream(stream);
  return copied.ok() ? waited : copied;
}

}  // namespace cairnfs::client
