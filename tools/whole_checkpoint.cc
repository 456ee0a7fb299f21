#include "whole_checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "base/types.h"
#include "cairnfs/cairnfs.h"
#include "checkpoints.h"
#include "retention/file_format.h"

namespace cairnfs::tools {
namespace {

namespace stdfs = std::filesystem;

constexpr size_t kReadBytes = 8 << 20;  // several requests at once

Result<std::string> ReadAt(int file, uint64_t offset, size_t size) {
  std::string bytes(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t got = pread(file, bytes.data() + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(errno, "it cannot be read");
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

// CairnFS reads a file that is open like this from the disk, past what is in memory; so do other file systems that know
// direct I/O, if the buffer is aligned.
std::optional<std::string> WhyUnreadable(const std::string& path) {
  constexpr int kHow = O_RDONLY | O_CLOEXEC | O_NOFOLLOW;
  int opened = open(path.c_str(), kHow | O_DIRECT | O_SYNC);
  if (opened < 0 && errno == EINVAL) opened = open(path.c_str(), kHow);
  const Descriptor file(opened);
  if (file.get() < 0) return ErrnoError(errno, "it cannot be opened").message;
  const std::unique_ptr<void, void (*)(void*)> buffer(aligned_alloc(kPageBytes, kReadBytes), &std::free);
  if (buffer == nullptr) return "there is no memory to read it";
  for (;;) {
    const ssize_t got = read(file.get(), buffer.get(), kReadBytes);
    if (got == 0) return std::nullopt;
    if (got < 0 && errno != EINTR) return ErrnoError(errno, "it cannot be read").message;
  }
}

// What lies in one directory, by name; of regular files with their sizes.
using Files = std::map<std::string, std::optional<uint64_t>>;

std::optional<std::string> WhyFileNotWhole(const stdfs::path& path, Depth depth, Files& files) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) return ErrnoError(errno, "it cannot be opened").message;
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) return ErrnoError(errno, "it cannot be looked at").message;
  const auto size = static_cast<uint64_t>(info.st_size);
  files[path.filename().string()] = size;
  const auto read = [&](uint64_t offset, size_t bytes) { return ReadAt(file.get(), offset, bytes); };
  std::optional<std::string> why = retention::WhyCutShort(path.string(), size, read);
  if (!why && depth == Depth::kAllBytes) why = WhyUnreadable(path.string());
  return why;
}

// A part of what was saved in several files: FRONT-3-of-8REST.
struct ShardName {
  std::string front, rest;
  uint64_t number = 0, count = 0;
};

std::optional<ShardName> ShardOf(const std::string& name) {
  constexpr std::string_view kOf = "-of-";
  const size_t of = name.rfind(kOf);
  const size_t dash = of == std::string::npos || of == 0 ? std::string::npos : name.rfind('-', of - 1);
  if (dash == std::string::npos) return std::nullopt;
  ShardName shard{.front = name.substr(0, dash), .rest = {}};
  const char* const end = name.data() + name.size();
  const auto number = std::from_chars(name.data() + dash + 1, name.data() + of, shard.number);
  const auto count = std::from_chars(name.data() + of + kOf.size(), end, shard.count);
  if (number.ec != std::errc() || number.ptr != name.data() + of || count.ec != std::errc()) return std::nullopt;
  shard.rest.assign(count.ptr, end);
  return shard;
}

std::optional<std::string> WhyLacks(const Files& files, const std::string& name, const char* writer) {
  const auto found = files.find(name);
  if (found == files.end()) return fmt::format("{} is missing, which {} writes last", name, writer);
  if (found->second == uint64_t{0}) return fmt::format("{} has 0 bytes, and {} writes it last", name, writer);
  return std::nullopt;
}

// TensorFlow's data lies in NAME.data-3-of-8, beside NAME.index; that of Hugging Face in NAME-3-of-8.safetensors,
// beside NAME.safetensors.index.json. What has such a name without an index may be read by itself.
std::optional<std::string> WhyShardsLack(const Files& files) {
  constexpr std::string_view kData = ".data";
  std::map<std::tuple<std::string, std::string, uint64_t>, std::set<uint64_t>> numbers;
  for (const auto& [name, size] : files) {
    const auto shard = ShardOf(name);
    if (!shard) continue;
    const bool is_bundle = shard->front.ends_with(kData) && shard->rest.empty();
    if (is_bundle) {
      const std::string front = shard->front.substr(0, shard->front.size() - kData.size());
      if (auto why = WhyLacks(files, front + ".index", "TensorFlow")) return why;
    }
    if (is_bundle || files.contains(shard->front + shard->rest + ".index.json")) {
      numbers[{shard->front, shard->rest, shard->count}].insert(shard->number);
    }
  }
  for (const auto& [shards, found] : numbers) {
    const auto& [front, rest, count] = shards;
    if (found.size() < count)
      return fmt::format("{} of {} files {}-*-of-*{} are there", found.size(), count, front, rest);
  }
  return std::nullopt;
}

// What is missing beside the files of one directory.
std::optional<std::string> WhyIncomplete(const Files& files) {
  const bool has_part =
      std::any_of(files.begin(), files.end(), [](const auto& file) { return file.first.ends_with(".distcp"); });
  if (has_part) {
    if (auto why = WhyLacks(files, ".metadata", "torch.distributed")) return why;
  }
  return WhyShardsLack(files);
}

// Of one that was committed with files and has none.
std::optional<std::string> WhyEmpty(const std::string& path) {
  const auto commit = ReadCommit(path);
  if (!commit.ok() || !*commit) return std::nullopt;
  const auto files = (*commit)->find("files");
  const bool had_files = files != (*commit)->end() && files->is_number_unsigned() && files->get<uint64_t>() > 0;
  if (!had_files) return std::nullopt;
  const auto count = files->get<uint64_t>();
  return fmt::format("its commit had {} {}, and none is left", count, count == 1 ? "file" : "files");
}

}  // namespace

std::optional<std::string> WhyNotWhole(const std::string& path, Depth depth) {
  char durability[16] = {};
  const ssize_t size = lgetxattr(path.c_str(), CAIRNFS_XATTR_DURABILITY, durability, sizeof durability - 1);
  const std::string_view is(durability, size > 0 ? static_cast<size_t>(size) : 0);
  if (is == CAIRNFS_DURABILITY_LOST) return "bytes of it are lost";
  std::error_code failed;
  bool has_files = false;
  std::vector<stdfs::path> directories{path};
  while (!directories.empty()) {
    const stdfs::path directory = std::move(directories.back());
    directories.pop_back();
    Files files;
    stdfs::directory_iterator entries(directory, failed);
    for (; !failed && entries != stdfs::directory_iterator(); entries.increment(failed)) {
      files[entries->path().filename().string()] = std::nullopt;
      const auto type = entries->symlink_status(failed).type();
      if (type == stdfs::file_type::directory) directories.push_back(entries->path());
      has_files |= type != stdfs::file_type::directory;
      if (failed || type != stdfs::file_type::regular) continue;
      if (auto why = WhyFileNotWhole(entries->path(), depth, files)) {
        return fmt::format("{}: {}", entries->path().lexically_relative(path).string(), *why);
      }
    }
    if (failed) return fmt::format("{} cannot be listed: {}", directory.string(), failed.message());
    if (auto why = WhyIncomplete(files)) return why;
  }
  return has_files ? std::nullopt : WhyEmpty(path);
}

}  // namespace cairnfs::tools
