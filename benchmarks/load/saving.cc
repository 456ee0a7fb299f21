// Saving as a trainer does it: large writes, one thread per file, then what makes the checkpoint durable.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <thread>

#include "commands.h"
#include "content.h"

namespace cairnfs::bench {
namespace {

// How the saved bytes become durable, and the checkpoint visible.
enum class Commit {
  kRename,     // rename of the directory alone: CairnFS waits in it
  kSyncs,      // fsync of each file, rename, fsync of the parent: what other file systems need for the same
  kFileSyncs,  // fsync of each file, and no directory: the floor has none
  kNone,       // close
};

Commit ParseCommit(const std::string& word) {
  if (word == "rename") return Commit::kRename;
  if (word == "syncs") return Commit::kSyncs;
  if (word == "file-syncs") return Commit::kFileSyncs;
  if (word == "none") return Commit::kNone;
  throw LoadError("no such way to commit: " + word);
}

struct FileTimes {
  double write_s = 0, slowest_write_s = 0, sync_s = 0, close_s = 0;
};

FileTimes SaveFile(const std::string& path, ByteSpan bytes, size_t block_bytes, bool sync) {
  FileTimes times;
  Descriptor file(path, O_CREAT | O_WRONLY | O_TRUNC);
  Stopwatch writing;
  for (size_t offset = 0; offset < bytes.size(); offset += block_bytes) {
    Stopwatch one;
    WriteAll(file.get(), bytes.subspan(offset, std::min(block_bytes, bytes.size() - offset)));
    times.slowest_write_s = std::max(times.slowest_write_s, one.Seconds());
  }
  times.write_s = writing.Seconds();
  Stopwatch syncing;
  if (sync) file.Sync();
  times.sync_s = syncing.Seconds();
  Stopwatch closing;
  file.Close();
  times.close_s = closing.Seconds();
  return times;
}

struct SavePlan {
  std::string directory;
  Commit commit = Commit::kNone;
  size_t block_bytes = 0;
  uint64_t file_count = 0, file_bytes = 0;
  uint64_t stride = 0;  // from one file's bytes to the next one's in the buffer; 0: all save the same bytes
};

// The times of the slowest thread.
FileTimes SaveFiles(const LoadState& state, const SavePlan& plan, const std::string& directory) {
  std::vector<FileTimes> times(plan.file_count);
  std::vector<std::exception_ptr> failures(plan.file_count);
  bool sync = plan.commit == Commit::kSyncs || plan.commit == Commit::kFileSyncs;
  auto save = [&](uint64_t i) {
    try {
      ByteSpan bytes = state.Part(i * plan.stride, plan.file_bytes);
      times[i] = SaveFile(directory + "/part-" + std::to_string(i), bytes, plan.block_bytes, sync);
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> writers;
    for (uint64_t i = 1; i < plan.file_count; i++) writers.emplace_back(save, i);
    save(0);
  }
  FileTimes slowest;
  for (uint64_t i = 0; i < plan.file_count; i++) {
    if (failures[i]) std::rethrow_exception(failures[i]);
    slowest.write_s = std::max(slowest.write_s, times[i].write_s);
    slowest.slowest_write_s = std::max(slowest.slowest_write_s, times[i].slowest_write_s);
    slowest.sync_s = std::max(slowest.sync_s, times[i].sync_s);
    slowest.close_s = std::max(slowest.close_s, times[i].close_s);
  }
  return slowest;
}

void MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0755) != 0) ThrowErrno(path);
}

void Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) ThrowErrno("rename to " + to);
}

// save COMMIT DIRECTORY FILES FILE_BYTES STRIDE BLOCK_BYTES
Answer Save(LoadState& state, Arguments& arguments) {
  SavePlan plan;
  plan.commit = ParseCommit(arguments.Text());
  plan.directory = arguments.Text();
  plan.file_count = arguments.Number();
  plan.file_bytes = arguments.Number();
  plan.stride = arguments.Number();
  plan.block_bytes = arguments.Number();

  bool renames = plan.commit == Commit::kRename || plan.commit == Commit::kSyncs;
  std::string directory = renames ? plan.directory + ".tmp" : plan.directory;
  Stopwatch total;
  if (renames) MakeDirectory(directory);
  FileTimes times = SaveFiles(state, plan, directory);
  Stopwatch committing;
  if (renames) Rename(directory, plan.directory);
  if (plan.commit == Commit::kSyncs) SyncDirectory(std::filesystem::path(plan.directory).parent_path());
  double commit_s = committing.Seconds();
  return {{"total_s", total.Seconds()}, {"write_s", times.write_s}, {"slowest_write_s", times.slowest_write_s},
          {"sync_s", times.sync_s},     {"close_s", times.close_s}, {"commit_s", commit_s}};
}

// append PATH BYTES PART_BYTES BLOCK_BYTES: a file longer than the buffer: the part again and again, each time changed
// in every page so that no two are alike; synced.
Answer SaveLong(LoadState& state, Arguments& arguments) {
  Descriptor file(arguments.Text(), O_CREAT | O_WRONLY | O_TRUNC);
  uint64_t left = arguments.Number();
  MutableByteSpan part = state.Part(0, arguments.Number());
  uint64_t block_bytes = arguments.Number();
  Stopwatch total;
  for (uint64_t turn = 1; left > 0; turn++) {
    for (size_t at = 0; at + sizeof turn <= part.size(); at += kPageBytes) {
      uint64_t word;
      std::memcpy(&word, part.data() + at, sizeof word);
      word = MixSeeds(word, turn);
      std::memcpy(part.data() + at, &word, sizeof word);
    }
    for (size_t offset = 0; offset < part.size() && left > 0; offset += block_bytes) {
      size_t size = std::min<uint64_t>({block_bytes, part.size() - offset, left});
      WriteAll(file.get(), part.subspan(offset, size));
      left -= size;
    }
  }
  file.Sync();
  file.Close();
  return {{"total_s", total.Seconds()}};
}

// overwrite PATH OFFSET BYTES SEED: one pwrite into an open file, and fsync.
Answer Overwrite(LoadState&, Arguments& arguments) {
  Descriptor file(arguments.Text(), O_WRONLY);
  auto offset = static_cast<off_t>(arguments.Number());
  std::vector<std::byte> bytes(arguments.Number());
  FillContent(arguments.Number(), bytes);
  Stopwatch total;
  if (pwrite(file.get(), bytes.data(), bytes.size(), offset) != static_cast<ssize_t>(bytes.size()))
    ThrowErrno("pwrite");
  double write_s = total.Seconds();
  file.Sync();
  return {{"total_s", total.Seconds()}, {"write_s", write_s}};
}

// rename FROM TO
Answer RenameAlone(LoadState&, Arguments& arguments) {
  const std::string& from = arguments.Text();
  const std::string& to = arguments.Text();
  Stopwatch total;
  Rename(from, to);
  return {{"total_s", total.Seconds()}};
}

}  // namespace

void AddSavingCommands(CommandTable& table) {
  table["save"] = Save;
  table["append"] = SaveLong;
  table["overwrite"] = Overwrite;
  table["rename"] = RenameAlone;
}

}  // namespace cairnfs::bench
