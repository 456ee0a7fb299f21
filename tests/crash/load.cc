#include "load.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "command.h"

namespace cairnfs::testing {

Load::Load(const LoadOptions& options) : options_(options), stalls_(options.stalls, DiskStalls::kUsualNs) {
  for (unsigned i = 0; i < options_.writer_count; ++i) {
    writers_.push_back(Writer{fmt::format("round{}-writer{}", options_.round, i), {}});
  }
}

std::string Load::Start(Sequence& sequence) {
  for (const Writer& writer : writers_) {
    if (mkdir((options_.mount + "/" + writer.name).c_str(), 0755) != 0)
      return fmt::format("mkdir: {}", strerror(errno));
  }
  int root = open(options_.mount.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (root < 0 || fsync(root) != 0) return fmt::format("fsync of the root: {}", strerror(errno));
  close(root);
  for (size_t i = 0; i < writers_.size(); ++i) {
    WorkloadOptions workload;
    workload.root = options_.mount;
    workload.seed = MixBits(options_.seed + i);
    workload.file_bytes_max = options_.file_bytes_max;
    workload.pause_us_max = options_.pause_us_max;
    workload.quiet = options_.quiet;
    // Old enough to have become durable before they are deleted.
    if (options_.quiet) workload.files_max = 300;
    workload.directory_renames_wait = options_.directory_renames_wait;
    // One writer in three never asks for anything: it lives on the order promise alone.
    workload.sync_percent = i % 3 == 2 || options_.quiet ? 0 : 12;
    workloads_.push_back(std::make_unique<Workload>(workload, writers_[i], sequence));
  }
  for (auto& workload : workloads_) {
    threads_.emplace_back([this, &workload] {
      workload->Run(stop_);
      if (!workload->failure().empty()) failed_ = true;
    });
  }
  threads_.emplace_back([this] { Tidy(); });
  return "";
}

void Load::Tidy() {
  for (const std::string& name : options_.remove) {
    std::error_code ignored;
    std::filesystem::remove_all(options_.mount + "/" + name, ignored);
  }
  while (!stop_ && !failed_ && options_.collects) {
    RunCommand({options_.tool, "gc", options_.mount});
    for (unsigned i = 0; i < options_.collect_pause_ms / 10 && !stop_ && !failed_; ++i) usleep(10000);
  }
}

void Load::Finish() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  stalls_.Stop();
}

std::string Load::Failures() const {
  std::string text;
  for (const auto& workload : workloads_) {
    if (!workload->failure().empty()) text += workload->failure() + "\n";
  }
  return text;
}

}  // namespace cairnfs::testing
