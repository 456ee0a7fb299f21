#include "client/loader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "client/arguments.h"
#include "client/descriptor.h"
#include "client/errors.h"
#include "client/load_request.h"

namespace cairnfs::client {
namespace {

constexpr uint64_t kPartBytesMax = 4 * kMiB;
constexpr uint64_t kRingBytes = 64 * kMiB;

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

Status Loader::Load(const cairnfs_load_request& request) {
  CAIRNFS_RETURN_IF_ERROR(AbsolutePath(request.path, "path"));
  const Descriptor file(open(request.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number() < 0) return FileError(errno, request.path);
  struct stat found {};
  if (fstat(file.number(), &found) != 0) return FileError(errno, request.path);
  if (!S_ISREG(found.st_mode)) return FileError(S_ISDIR(found.st_mode) ? EISDIR : EINVAL, request.path);
  CAIRNFS_RETURN_IF_ERROR(CheckReads(request, static_cast<uint64_t>(found.st_size), devices_));
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
