// Many small files: made, looked at, listed, removed.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>

#include "commands.h"
#include "content.h"

namespace cairnfs::bench {
namespace {

std::string FileName(const std::string& directory, uint64_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "/file-%07llu", static_cast<unsigned long long>(number));
  return directory + name;
}

// Calls `act` with each number below `count`, from so many threads, which take every THREADS-th number.
template <typename Act>
Answer ForEachFile(uint64_t count, uint64_t threads, const Act& act) {
  if (threads == 0) throw LoadError("no threads");
  std::vector<std::exception_ptr> failures(threads);
  auto work = [&](uint64_t thread) {
    try {
      for (uint64_t i = thread; i < count; i += threads) act(i);
    } catch (...) {
      failures[thread] = std::current_exception();
    }
  };
  Stopwatch total;
  {
    std::vector<std::jthread> others;
    for (uint64_t thread = 1; thread < threads; thread++) others.emplace_back(work, thread);
    work(0);
  }
  double seconds = total.Seconds();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return {{"total_s", seconds}};
}

uint64_t ThreadsOf(Arguments& arguments) { return arguments.AtEnd() ? 1 : arguments.Number(); }

// create DIRECTORY COUNT BYTES SEED [THREADS]
Answer Create(LoadState&, Arguments& arguments) {
  const std::string& directory = arguments.Text();
  uint64_t count = arguments.Number();
  uint64_t bytes = arguments.Number();
  std::vector<std::byte> content(bytes * 256);
  FillContent(arguments.Number(), content);
  return ForEachFile(count, ThreadsOf(arguments), [&](uint64_t i) {
    ByteSpan part = ByteSpan(content).subspan(i % 256 * bytes, bytes);
    Descriptor file(FileName(directory, i), O_CREAT | O_EXCL | O_WRONLY);
    if (bytes >= sizeof i) {  // no two files are alike
      std::vector<std::byte> own(part.begin(), part.end());
      std::memcpy(own.data(), &i, sizeof i);
      WriteAll(file.get(), own);
    } else {
      WriteAll(file.get(), part);
    }
    file.Close();
  });
}

// stat DIRECTORY COUNT [THREADS]
Answer Stat(LoadState&, Arguments& arguments) {
  const std::string& directory = arguments.Text();
  uint64_t count = arguments.Number();
  return ForEachFile(count, ThreadsOf(arguments), [&](uint64_t i) {
    struct stat status {};
    std::string name = FileName(directory, i);
    if (stat(name.c_str(), &status) != 0) ThrowErrno(name);
  });
}

// Visits all entries of the directory DIRECTORY; they must be COUNT.
template <typename Visit>
Answer VisitEntries(Arguments& arguments, Visit visit) {
  const std::string& directory = arguments.Text();
  uint64_t expected = arguments.Number();
  Stopwatch total;
  DIR* stream = opendir(directory.c_str());
  if (stream == nullptr) ThrowErrno(directory);
  uint64_t count = 0;
  while (const dirent* entry = readdir(stream)) {
    visit(stream, *entry, directory);
    count += entry->d_name[0] != '.';
  }
  closedir(stream);
  double seconds = total.Seconds();
  if (count != expected) throw LoadError(directory + " lists " + std::to_string(count) + " files");
  return {{"total_s", seconds}};
}

// list DIRECTORY COUNT: readdir alone.
Answer List(LoadState&, Arguments& arguments) {
  return VisitEntries(arguments, [](DIR*, const dirent&, const std::string&) {});
}

// list-stat DIRECTORY COUNT: readdir and the attributes of each entry, as ls -l does.
Answer ListStat(LoadState&, Arguments& arguments) {
  return VisitEntries(arguments, [](DIR* stream, const dirent& entry, const std::string& directory) {
    struct stat status {};
    if (fstatat(dirfd(stream), entry.d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) ThrowErrno(directory);
  });
}

// rename-files FROM TO COUNT: each file of the directory FROM, under its name, into the directory TO
Answer RenameFiles(LoadState&, Arguments& arguments) {
  const std::string& from = arguments.Text();
  const std::string& to = arguments.Text();
  uint64_t count = arguments.Number();
  Stopwatch total;
  for (uint64_t i = 0; i < count; i++) {
    std::string name = FileName(from, i);
    if (std::rename(name.c_str(), FileName(to, i).c_str()) != 0) ThrowErrno(name);
  }
  return {{"total_s", total.Seconds()}};
}

// unlink DIRECTORY COUNT [THREADS]
Answer Unlink(LoadState&, Arguments& arguments) {
  const std::string& directory = arguments.Text();
  uint64_t count = arguments.Number();
  return ForEachFile(count, ThreadsOf(arguments), [&](uint64_t i) {
    std::string name = FileName(directory, i);
    if (unlink(name.c_str()) != 0) ThrowErrno(name);
  });
}

}  // namespace

void AddNameCommands(CommandTable& table) {
  table["create"] = Create;
  table["stat"] = Stat;
  table["list"] = List;
  table["list-stat"] = ListStat;
  table["rename-files"] = RenameFiles;
  table["unlink"] = Unlink;
}

}  // namespace cairnfs::bench
