// What a writer does with whole checkpoints, and how it chooses.
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "workload.h"

namespace cairnfs::testing {

// step-N.tmp with a few files, sometimes in a directory of their own; then the rename that publishes it.
bool Workload::Commit() {
  std::string step = FreshName("step-");
  std::string temporary = step + ".tmp";
  std::string inner = random_.OneIn(3) ? "/shards" : "";
  auto make = [&](const std::string& path) {
    Record& record = Begin(Step::kMkdir, path);
    record.mode = 0755;
    sequence_.Begin(record);
    return End(record, mkdir(Full(path).c_str(), 0755), "mkdir");
  };
  if (!make(temporary) || (!inner.empty() && !make(temporary + inner))) return false;
  std::vector<File> files;
  for (uint64_t i = random_.Between(1, 5); i > 0; --i) {
    File file;
    if (!SaveNew(temporary + inner + "/" + FreshName("shard"), random_.Percent(options_.sync_percent / 2), &file)) {
      return false;
    }
    files.push_back(File{step + file.path.substr(temporary.size()), file.id});
  }
  Record& record = Begin(Step::kRenameDirectory, temporary, step);
  record.is_sync_point = options_.directory_renames_wait;
  sequence_.Begin(record);
  if (!End(record, rename(Full(temporary).c_str(), Full(step).c_str()), "rename of a directory")) return false;
  steps_.emplace_back(step, files);
  return steps_.size() <= 3 || DeleteStep();
}

// As rm -r of the oldest: the trainer's retention.
bool Workload::DeleteStep() {
  auto [step, files] = steps_.front();
  steps_.erase(steps_.begin());
  auto remove = [&](Step kind, const std::string& path) {
    Record& record = Begin(kind, path);
    sequence_.Begin(record);
    int rc = kind == Step::kRmdir ? rmdir(Full(path).c_str()) : unlink(Full(path).c_str());
    return End(record, rc, kind == Step::kRmdir ? "rmdir" : "unlink");
  };
  std::string directory;
  for (const File& file : files) {
    if (!remove(Step::kUnlink, file.path)) return false;
    directory = file.path.substr(0, file.path.rfind('/'));
  }
  if (directory != step && !remove(Step::kRmdir, directory)) return false;
  return remove(Step::kRmdir, step);
}

// A new file, written, renamed over an old one; closed before or after the rename.
bool Workload::Replace() {
  size_t index = PickFile();
  std::string target = files_[index].path;
  std::string temporary = FreshName("tmp");
  int id = files_made_++;
  Record& create = Begin(Step::kCreate, temporary, "", id);
  create.mode = 0644;
  sequence_.Begin(create);
  int fd = open(Full(temporary).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (!End(create, fd, "create")) return false;
  if (!WriteTo(fd, id, 0, PickSize(), false)) return close(fd), false;
  bool closes_before = random_.OneIn(2);
  if (random_.Percent(options_.sync_percent) && !SyncFile(fd, id)) return close(fd), false;
  if (closes_before && !CloseFile(fd, id)) return false;
  Record& record = Begin(Step::kRenameFile, temporary, target, id);
  sequence_.Begin(record);
  if (!End(record, rename(Full(temporary).c_str(), Full(target).c_str()), "rename")) {
    if (!closes_before) close(fd);
    return false;
  }
  files_[index].id = id;
  return closes_before || CloseFile(fd, id);
}

// Names and data without any sync point: nothing becomes durable but by itself.
bool Workload::ActQuietly() {
  uint64_t dice = random_.Below(100);
  if (dice < 20) return Overwrite();
  if (dice < 30) return Append();
  if (dice < 35) return Truncate();
  if (dice < 45) return Copy();
  if (dice < 55) return Replace();
  if (dice < 60) return Rename();
  if (dice < 90) return Delete();
  return DeleteOpen();
}

bool Workload::Act() {
  if (files_.size() > options_.files_max) return Delete();
  uint64_t dice = random_.Below(100);
  if (options_.quiet && files_.size() >= 4 && dice >= 35) return ActQuietly();
  if (files_.size() < 4 || dice < 20 || (options_.quiet && dice < 35)) {
    File file;
    if (!SaveNew(FreshName("n"), random_.Percent(options_.sync_percent), &file)) return false;
    files_.push_back(file);
    return true;
  }
  if (dice < 32) return Overwrite();
  if (dice < 40) return Append();
  if (dice < 44) return Truncate();
  if (dice < 47) return Punch();
  if (dice < 52) return Copy();
  if (dice < 55) return MapAndWrite();
  if (dice < 68) return Commit();
  if (dice < 78) return Replace();
  if (dice < 82) return Rename();
  if (dice < 87) return MakeLink();
  if (dice < 91) return Attributes();
  if (dice < 96) return Delete();
  if (dice < 98) return DeleteOpen();
  return SyncDirectory();
}

}  // namespace cairnfs::testing
