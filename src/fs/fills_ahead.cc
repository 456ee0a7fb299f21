#include "fs/fills_ahead.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace cairnfs::fs {
namespace {

// Of what was changed before, the chunks are hardly in memory any more.
constexpr int64_t kRecentSeconds = 600;

template <typename T>
void PutFirst(std::deque<T>& queue, std::vector<T> items, size_t size_max) {
  queue.insert(queue.begin(), std::make_move_iterator(items.begin()), std::make_move_iterator(items.end()));
  if (queue.size() > size_max) queue.resize(size_max);
}

}  // namespace

bool FillsAhead::BeginLine(InodeId parent, InodeId committed) {
  const auto before =
      std::find_if(lines_.begin(), lines_.end(), [parent](const Line& line) { return line.parent == parent; });
  bool was_read = false;
  if (before != lines_.end()) {
    was_read = before->was_read;
    lines_.erase(before);
  }
  lines_.push_front({parent, committed});
  if (lines_.size() > kLinesMax) lines_.pop_back();
  has_lines_ = true;
  return was_read;
}

void FillsAhead::NoteRead(InodeId directory) {
  if (!has_lines_) return;
  MutexLock lock(mutex_);
  for (Line& line : lines_) line.was_read |= line.last == directory;
}

void FillsAhead::NoteCommitted(InodeId parent, const std::vector<InodeId>& directories) {
  if (directories.empty() || !at_.backing_files.is_begun()) return;
  MutexLock lock(mutex_);
  if (!BeginLine(parent, directories.front()) || stop_.stop_requested()) return;
  PutFirst(directories_, directories, kDirectoriesMax);
  if (!is_posted_) is_posted_ = at_.backing_files.PostFill([this] { Step(); });
}

void FillsAhead::Step() {
  std::optional<InodeId> directory;
  std::optional<File> file;
  {
    MutexLock lock(mutex_);
    if (!directories_.empty()) {
      directory = directories_.front();
      directories_.pop_front();
    } else if (!files_.empty()) {
      file = files_.front();
      files_.pop_front();
    }
    if (stop_.stop_requested() || (!directory && !file)) {
      is_posted_ = false;
      return;
    }
  }
  std::vector<InodeId> below;
  std::vector<File> found;
  if (directory) found = Look(*directory, below);
  if (file) Fill(*file);
  MutexLock lock(mutex_);
  PutFirst(directories_, std::move(below), kDirectoriesMax);
  PutFirst(files_, std::move(found), kFilesMax);
  is_posted_ = at_.backing_files.PostFill([this] { Step(); });
}

bool FillsAhead::WasWrittenHere(InodeId id) {
  const InodePtr inode = at_.table.Find(id);
  if (!inode) return false;
  MutexLock lock(inode->mutex);
  return inode->write_opens > 0 && inode->write_open_count == 0 && !inode->opened_for_update && !inode->backing;
}

std::vector<FillsAhead::File> FillsAhead::Look(InodeId directory, std::vector<InodeId>& directories) {
  std::vector<InodeId> written;
  const auto visit = [&](std::string_view, InodeId inode, uint32_t type) {
    if (type == S_IFDIR && directories.size() < kDirectoriesMax) directories.push_back(inode);
    if (type == S_IFREG && written.size() < kFilesMax && WasWrittenHere(inode)) written.push_back(inode);
  };
  std::vector<File> files;
  if (!at_.names.VisitDirectory(until_stop_, directory, visit).ok()) return files;  // it is gone, say
  const int64_t now = Clock::WallTime().seconds;
  for (const InodeId inode : written) {
    const auto attr = at_.names.GetAttr(until_stop_, inode);
    if (!attr.ok() || (attr->mode & (S_IXUSR | S_IXGRP | S_IXOTH)) != 0) continue;
    if (now - attr->mtime.seconds < kRecentSeconds) files.push_back({inode, attr->uid});
  }
  return files;
}

void FillsAhead::Fill(const File& file) {
  if (!HasRoom()) return;
  const Status filled = at_.backing_files.Fill(until_stop_, file.id, file.owner);
  if (!filled.ok()) spdlog::debug("inode {} is not filled ahead: {}", file.id.value, filled.error().message);
}

}  // namespace cairnfs::fs
