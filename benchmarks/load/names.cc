// Many small files: made, looked at, listed, removed.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "commands.h"
#include "content.h"

namespace cairnfs::bench {
namespace {

std::string FileName(const std::string& directory, uint64_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "/file-%07llu", static_cast<unsigned long long>(number));
  return directory + name;
}

// create DIRECTORY COUNT BYTES SEED
Answer Create(LoadState&, Arguments& arguments) {
  const std::string& directory = arguments.Text();
  uint64_t count = arguments.Number();
  uint64_t bytes = arguments.Number();
  std::vector<std::byte> content(bytes * 256);
  FillContent(arguments.Number(), content);
  Stopwatch total;
  for (uint64_t i = 0; i < count; i++) {
    MutableByteSpan part = MutableByteSpan(content).subspan(i % 256 * bytes, bytes);
    if (bytes >= sizeof i) std::memcpy(part.data(), &i, sizeof i);  // no two files are alike
    Descriptor file(FileName(directory, i), O_CREAT | O_EXCL | O_WRONLY);
    WriteAll(file.get(), part);
    file.Close();
  }
  return {{"total_s", total.Seconds()}};
}

// stat DIRECTORY COUNT
Answer Stat(LoadState&, Arguments& arguments) {
  const std::string& directory = arguments.Text();
  uint64_t count = arguments.Number();
  Stopwatch total;
  for (uint64_t i = 0; i < count; i++) {
    struct stat status {};
    std::string name = FileName(directory, i);
    if (stat(name.c_str(), &status) != 0) ThrowErrno(name);
  }
  return {{"total_s", total.Seconds()}};
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

// unlink DIRECTORY COUNT
Answer Unlink(LoadState&, Arguments& arguments) {
  const std::string& directory = arguments.Text();
  uint64_t count = arguments.Number();
  Stopwatch total;
  for (uint64_t i = 0; i < count; i++) {
    std::string name = FileName(directory, i);
    if (unlink(name.c_str()) != 0) ThrowErrno(name);
  }
  return {{"total_s", total.Seconds()}};
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
