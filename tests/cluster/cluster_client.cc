// One client of a cluster test: carries out calls on a directory and says when each began and ended.
//
//   cluster_client DIR [--mounted | --plain] [--limit-ms N] [--planted LIE] [--seed N]
//
// --mounted: DIR is a mount point. While nothing is mounted there, because its host is being started again, what lies
// under it must not be taken for the filesystem: each call then answers ENOTCONN.
// --plain: DIR is a directory of a file system where a read may see half of a write, as on ext4 and tmpfs, whose reads
// take no lock. Clients then keep reads and changes of contents apart by a flock on the round's directory.
//
// Reads one JSON object per line from stdin: "id", "op" and arguments. Writes one line per answer to stdout: "id",
// "begin", "end" (ns, CLOCK_MONOTONIC, comparable among all clients of a machine), "error" and what else there is.
// Calls are carried out one after the other. One that takes longer than the limit is reported at once with "hang_ms";
// its answer still follows when it comes. Ends when stdin does.
//
// Ops: those of history.h, with "root", a directory below DIR, and "sync" for writes; and for checkpoints, with "path"
// below DIR: "put" (file of "bytes" made from "seed", created or replaced, fsync if "sync"), "verify" (is it that? "is"
// is "same", "different", "missing"), "fsync_directory"; and on a file that stays open under the name "handle": "open"
// ("path"), "pwrite" ("offset", "bytes", "seed"), "fsetxattr" ("token"), "fsync", "close".
//
// --planted makes it tell a lie now and then, so that a test can show that the lie is found.
#include <fcntl.h>
#include <fmt/format.h>
#include <getopt.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "history.h"
#include "random.h"

namespace cairnfs::testing {
namespace {

using nlohmann::json;

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

class Output {
 public:
  void Write(const json& line) {
    std::lock_guard lock(mutex_);
    std::cout << line.dump() << std::endl;
  }

 private:
  std::mutex mutex_;
};

// Notices a call that does not end, from a thread of its own.
class Watchdog {
 public:
  Watchdog(Output& output, int64_t limit_ms) : output_(output), limit_ms_(limit_ms), thread_([this] { Watch(); }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void Begin(const json& id) {
    std::lock_guard lock(mutex_);
    id_ = id;
    begin_ns_ = NowNs();
    is_running_ = true;
    changed_.notify_all();
  }
  void End() {
    std::lock_guard lock(mutex_);
    is_running_ = false;
  }

 private:
  void Watch() {
    std::unique_lock lock(mutex_);
    while (!stopped_) {
      int64_t left_ms = is_running_ ? limit_ms_ - (NowNs() - begin_ns_) / 1000000 : limit_ms_;
      if (is_running_ && left_ms <= 0) {
        output_.Write(json{{"id", id_}, {"begin", begin_ns_}, {"hang_ms", limit_ms_}});
        is_running_ = false;
        continue;
      }
      changed_.wait_for(lock, std::chrono::milliseconds(left_ms));
    }
  }

  Output& output_;
  const int64_t limit_ms_;
  std::mutex mutex_;
  std::condition_variable changed_;
  json id_;
  int64_t begin_ns_ = 0;
  bool is_running_ = false, stopped_ = false;
  std::thread thread_;
};

int ErrorOf(int returned) { return returned == 0 ? 0 : errno; }

// The bytes [offset, offset + size) of the endless stream that a seed makes; `offset` is a multiple of 8.
std::string StreamContent(uint64_t seed, uint64_t offset, size_t size) {
  std::string bytes((size + 7) / 8 * 8, '\0');
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = MixBits(MixBits(seed) + (offset + i) / 8);
    std::memcpy(bytes.data() + i, &word, 8);
  }
  bytes.resize(size);
  return bytes;
}

constexpr size_t kPieceBytes = 1 << 20;

int WriteAll(int fd, uint64_t seed, uint64_t offset, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    std::string piece = StreamContent(seed, offset + done, std::min<uint64_t>(kPieceBytes, bytes - done));
    ssize_t written = pwrite(fd, piece.data(), piece.size(), static_cast<off_t>(offset + done));
    if (written < 0) return errno;
    if (static_cast<size_t>(written) != piece.size()) return EIO;
    done += piece.size();
  }
  return 0;
}

json Put(const std::string& path, const json& line) {
  int fd = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0) return {{"error", errno}, {"call", "open"}};
  json answer{{"error", 0}};
  auto note = [&answer](int error, const char* call) {
    if (error != 0 && answer["error"] == 0) answer = {{"error", error}, {"call", call}};
  };
  note(WriteAll(fd, line.at("seed"), 0, line.at("bytes")), "write");
  if (line.value("sync", false) && answer["error"] == 0) note(ErrorOf(fsync(fd)), "fsync");
  note(ErrorOf(close(fd)), "close");
  return answer;
}

json Verify(const std::string& path, const json& line) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return {{"error", 0}, {"is", "missing"}};
  if (fd < 0) return {{"error", errno}, {"call", "open"}};
  uint64_t expected = line.at("bytes"), seed = line.at("seed"), at = 0;
  json answer{{"error", 0}, {"is", "same"}};
  std::string buffer(kPieceBytes, '\0');
  for (;;) {
    ssize_t size = pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(at));
    if (size < 0) {
      answer = {{"error", errno}, {"call", "read"}};
      break;
    }
    size_t count = static_cast<size_t>(size);
    std::string piece = StreamContent(seed, at / 8 * 8, count + at % 8).substr(at % 8);
    if (count == 0 && at == expected) break;
    if (count == 0 || at + count > expected || piece.compare(0, count, buffer, 0, count) != 0) {
      size_t first = 0;
      while (first < count && piece[first] == buffer[first]) ++first;
      answer = {{"error", 0}, {"is", "different"}, {"first_difference", at + first}};
      break;
    }
    at += count;
  }
  close(fd);
  return answer;
}

json SyncDirectory(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return {{"error", errno}, {"call", "open"}};
  json answer{{"error", ErrorOf(fsync(fd))}};
  close(fd);
  return answer;
}

// Turns answers into wrong ones, each of a kind that a broken cluster would give.
class Liar {
 public:
  Liar(std::string lie, uint64_t seed) : lie_(std::move(lie)), random_(seed) {}

  // Instead of the call: true when it is left out and was answered.
  bool Skips(const TreeOperation& operation, TreeResult& result) {
    if (lie_ == "lost_write" && operation.act == TreeAct::kWrite && random_.OneIn(6)) return Answer(result);
    if (lie_ == "lost_rename" && operation.act == TreeAct::kRename && operation.flags == 0 && random_.OneIn(6)) {
      return Answer(result);
    }
    return false;
  }

  void Change(const std::string& root, const TreeOperation& operation, TreeResult& result) {
    if (lie_ == "double_create" && operation.act == TreeAct::kCreate && result.error == EEXIST) result = {};
    // What this client saw last, as a cache that nobody recalled gives it.
    bool looks =
        operation.act == TreeAct::kRead || operation.act == TreeAct::kStat || operation.act == TreeAct::kReaddir;
    bool may = (lie_ == "stale_read" && operation.act == TreeAct::kRead) ||
               (lie_ == "stale_stat" && operation.act == TreeAct::kStat) ||
               (lie_ == "stale_names" && operation.act == TreeAct::kReaddir);
    if (!looks) return;
    std::string key = fmt::format("{}/{}/{}", root, operation.path, static_cast<int>(operation.act));
    auto seen = seen_.find(key);
    if (may && seen != seen_.end() && random_.OneIn(2)) {
      result = seen->second;
    } else {
      seen_[key] = result;
    }
  }

  // A lock that is given although another holds it.
  int ChangeLock(const LockOperation& operation, int error) {
    return lie_ == "double_lock" && operation.act == LockAct::kTry && error == EAGAIN && random_.OneIn(4) ? 0 : error;
  }

 private:
  static bool Answer(TreeResult& result) {
    result = {};
    return true;
  }

  const std::string lie_;
  Random random_;
  std::map<std::string, TreeResult> seen_;
};

// Which mount has its root there; 0: none. Asks the kernel alone, so it does not wait for a daemon.
uint64_t MountAt(const std::string& directory) {
  struct statx info {};
  if (statx(AT_FDCWD, directory.c_str(), AT_STATX_DONT_SYNC, STATX_MNT_ID, &info) != 0) return 0;
  return (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0 ? info.stx_mnt_id : 0;
}

// Keeps reads and changes of contents apart, where the file system does not.
class ContentLock {
 public:
  ContentLock(const std::string& root, TreeAct act) {
    if (act != TreeAct::kRead && act != TreeAct::kWrite && act != TreeAct::kTruncate) return;
    fd_ = open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd_ < 0 || flock(fd_, act == TreeAct::kRead ? LOCK_SH : LOCK_EX) != 0) {
      throw std::system_error(errno, std::generic_category(), root);
    }
  }
  ContentLock(const ContentLock&) = delete;
  ~ContentLock() {
    if (fd_ >= 0) close(fd_);
  }

 private:
  int fd_ = -1;
};

class Client {
 public:
  enum class Kind { kAny, kMounted, kPlain };

  Client(std::string directory, Kind kind, std::string lie, uint64_t seed)
      : directory_(std::move(directory)), kind_(kind), liar_(std::move(lie), seed) {}

  json Answer(const json& line) {
    bool is_mounted = kind_ == Kind::kMounted;
    uint64_t mount = is_mounted ? MountAt(directory_) : 0;
    json answer = AnswerThere(line);
    if (is_mounted && (mount == 0 || MountAt(directory_) != mount)) {
      return {{"error", ENOTCONN}, {"begin", answer["begin"]}, {"end", answer["end"]}};
    }
    return answer;
  }

 private:
  json AnswerThere(const json& line) {
    std::string op = line.at("op"), path = directory_ + "/" + line.value("path", "");
    int64_t begin = 0;
    json answer;
    if (IsTreeOp(op)) {
      TreeOperation operation = TreeOperationFrom(line);
      std::string root = directory_ + "/" + line.value("root", "");
      begin = NowNs();
      answer = Tree(root, operation, {line.value("sync", false)});
    } else if (op == "lock") {
      path = directory_ + "/" + line.value("root", "") + "/" + line.value("path", "");
      begin = NowNs();
      answer = Lock(path, line);
    } else {
      begin = NowNs();
      answer = Plain(op, path, line);
    }
    answer["begin"] = begin;
    answer["end"] = NowNs();
    return answer;
  }

  json Tree(const std::string& root, const TreeOperation& operation, const PerformOptions& options) {
    TreeResult result;
    if (!liar_.Skips(operation, result)) {
      std::optional<ContentLock> lock;
      if (kind_ == Kind::kPlain) lock.emplace(root, operation.act);
      result = Perform(root, operation, options);
      liar_.Change(root, operation, result);
    }
    return ToJson(operation, result);
  }

  // With "opened", when the file was opened, in the first call on it.
  json Lock(const std::string& path, const json& line) {
    LockOperation operation = LockOperationFrom(line);
    LockFiles::Kind kind = LockKindFrom(line);
    json answer;
    if (!locks_.IsOpen(path, kind)) {
      int64_t begin = NowNs();
      if (int error = locks_.Open(path, kind); error != 0) return {{"error", error}, {"call", "open"}};
      answer["opened"] = {begin, NowNs()};
    }
    answer["error"] = liar_.ChangeLock(operation, locks_.Perform(path, kind, operation));
    return answer;
  }

  json Plain(const std::string& op, const std::string& path, const json& line) {
    if (op == "put") return Put(path, line);
    if (op == "verify") return Verify(path, line);
    if (op == "fsync_directory") return SyncDirectory(path);
    std::string handle = line.value("handle", "");
    if (op == "open") {
      int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
      if (fd < 0) return {{"error", errno}};
      handles_[handle] = fd;
      return {{"error", 0}};
    }
    auto place = handles_.find(handle);
    if (place == handles_.end()) return {{"error", EBADF}};
    if (op == "pwrite")
      return {{"error", WriteAll(place->second, line.at("seed"), line.at("offset"), line.at("bytes"))}};
    if (op == "fsync") return {{"error", ErrorOf(fsync(place->second))}};
    if (op == "fsetxattr") {
      std::string value = std::to_string(line.at("token").get<int64_t>());
      return {{"error", ErrorOf(fsetxattr(place->second, kTokenXattr, value.data(), value.size(), 0))}};
    }
    if (op == "close") {
      int error = ErrorOf(close(place->second));
      handles_.erase(place);
      return {{"error", error}};
    }
    throw std::invalid_argument("no such operation: " + op);
  }

  const std::string directory_;
  const Kind kind_;
  Liar liar_;
  LockFiles locks_;
  std::map<std::string, int> handles_;
};

int Main(int argc, char** argv) {
  static const option kLong[] = {{"limit-ms", 1, nullptr, 'l'}, {"planted", 1, nullptr, 'p'}, {"seed", 1, nullptr, 's'},
                                 {"mounted", 0, nullptr, 'm'},  {"plain", 0, nullptr, 'f'},   {nullptr, 0, nullptr, 0}};
  auto kind = Client::Kind::kAny;
  int64_t limit_ms = 60000;
  std::string lie;
  uint64_t seed = 1;
  for (int c; (c = getopt_long(argc, argv, "", kLong, nullptr)) != -1;) {
    switch (c) {
      case 'l': limit_ms = std::strtoll(optarg, nullptr, 10); break;
      case 'p': lie = optarg; break;
      case 's': seed = std::strtoull(optarg, nullptr, 10); break;
      case 'm': kind = Client::Kind::kMounted; break;
      case 'f': kind = Client::Kind::kPlain; break;
      default: return 2;
    }
  }
  if (optind + 1 != argc || limit_ms <= 0) {
    fmt::print(stderr, "usage: cluster_client DIR [--mounted | --plain] [--limit-ms N] [--planted LIE] [--seed N]\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  umask(0);
  Output output;
  Watchdog watchdog(output, limit_ms);
  Client client(argv[optind], kind, lie, seed);
  for (std::string row; std::getline(std::cin, row);) {
    try {
      json line = json::parse(row);
      watchdog.Begin(line.at("id"));
      json answer = client.Answer(line);
      watchdog.End();
      answer["id"] = line["id"];
      output.Write(answer);
    } catch (const std::exception& error) {
      fmt::print(stderr, "cluster_client: {}: {}\n", row, error.what());
      return 2;
    }
  }
  return 0;
}

}  // namespace
}  // namespace cairnfs::testing

int main(int argc, char** argv) { return cairnfs::testing::Main(argc, argv); }
