// Logging: spdlog behind one name. Messages go to stderr, which systemd gives to the journal, or to a file. The journal
// knows times by itself and is told priorities: there a line is "<4>message" (sd-daemon(3)).
// The library logs what no caller will report; a returned Error is the caller's to log.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

#include "base/result.h"

namespace cairnfs {

struct LogOptions {
  std::string level = "info";  // trace, debug, info, warning, error, off
  std::string file;            // empty or "/dev/stderr": stderr
  bool to_journal = false;     // stderr was connected with the journal since the process began

  // A regular file that has grown to `file_bytes_max`, or to a 1024th of its disk, becomes FILE.1.log, and what was
  // that FILE.2.log: the disk below is often the one that holds the data. Further lines of a minute that had
  // `lines_per_minute_max` are left out: what strangers do must not push everything else out of the files. A device, a
  // pipe or a symbolic link is only appended to.
  size_t file_bytes_max = 8 << 20;
  size_t old_files_max = 2;
  size_t lines_per_minute_max = 2000;  // of info and above
};

// Whether stderr is the stream to the journal that systemd named in $JOURNAL_STREAM.
bool StderrIsJournal();

// kNotFound or kNotDirectory, with the directory's name, when `file` lies in none that is there; kInvalidArgument when
// it is a directory itself.
Status CheckLogFile(const std::string& file);

// What the files of the log that was installed last take at most of the disk that holds `directory`; 0 where they lie
// on another. Threads: not while InitLog runs.
uint64_t LogBytesMaxOn(const std::string& directory);

// Installs the process-wide logger. Threads: call once, before others start. kInvalidArgument for an unknown level,
// kIo when the file cannot be opened; else as CheckLogFile.
Status InitLog(const LogOptions& options);

}  // namespace cairnfs
