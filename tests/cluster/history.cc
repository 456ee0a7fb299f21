#include "history.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace cairnfs::testing {
namespace {

constexpr std::array<const char*, 14> kActs = {"mkdir",    "create", "link",     "unlink",  "rmdir",
                                               "rename",   "stat",   "readdir",  "write",   "read",
                                               "truncate", "chmod",  "setxattr", "getxattr"};

void SetOutcome(const nlohmann::json& line, CallInterval& interval, bool& is_known) {
  interval.begin = line.at("begin").get<int64_t>();
  is_known = line.contains("error") && IsDefinite(line["error"].get<int>());
  // The moment at which an indefinite error was told says nothing about when the call takes effect.
  bool has_bound = is_known || !line.contains("error");
  interval.end = has_bound ? line.value("end", kNever) : line.value("effect_by", kNever);
  if (interval.end < interval.begin) throw std::invalid_argument("a call ends before it begins: " + line.dump());
}

TreeResult TreeResultFrom(const nlohmann::json& line) {
  TreeResult result;
  result.error = line.at("error").get<int>();
  result.inode = line.value("inode", int64_t{0});
  result.links = line.value("links", int64_t{0});
  result.slots = line.value("size_slots", int64_t{0});
  result.mode = line.value("mode_is", int64_t{0});
  result.token = line.value("token_is", int64_t{0});
  result.names = line.value("names", std::vector<std::string>{});
  result.tokens = line.value("tokens", std::vector<int64_t>{});
  return result;
}

// The opening of the lock's owner, which is a part of its first call. A client keeps its files open, so whoever has
// opened one does not do it again; where the first call was not answered nobody knows whether it came to that.
void NoteOpen(const nlohmann::json& line, const LockOperation& lock,
              std::set<std::pair<std::string, std::string>>& opened, History& history) {
  bool is_told = line.contains("opened");
  if (!is_told && (lock.error || opened.contains({lock.space, lock.owner}))) return;
  LockOperation open = lock;
  open.act = LockAct::kOpen;
  if (is_told) {
    opened.emplace(lock.space, lock.owner);
    open.interval = {line["opened"].at(0).get<int64_t>(), line["opened"].at(1).get<int64_t>()};
    open.error = 0;
  }
  history.locks.push_back(std::move(open));
}

}  // namespace

bool IsDefinite(int error) {
  constexpr std::array kDefinite = {0,     ENOENT,  EEXIST, ENOTDIR, EISDIR,       ENOTEMPTY, EINVAL,
                                    EPERM, ENODATA, EAGAIN, EACCES,  ENAMETOOLONG, EDEADLK,   EMLINK};
  return std::find(kDefinite.begin(), kDefinite.end(), error) != kDefinite.end();
}

bool IsTreeOp(const std::string& op) { return std::find(kActs.begin(), kActs.end(), op) != kActs.end(); }

TreeOperation TreeOperationFrom(const nlohmann::json& line) {
  TreeOperation operation;
  std::string op = line.at("op").get<std::string>();
  auto place = std::find(kActs.begin(), kActs.end(), op);
  if (place == kActs.end()) throw std::invalid_argument("no such operation: " + op);
  operation.act = static_cast<TreeAct>(place - kActs.begin());
  operation.path = line.at("path").get<std::string>();
  operation.target = line.value("target", "");
  operation.flags = line.value("flags", 0U);
  operation.first_slot = line.value("first_slot", int64_t{0});
  operation.slots = line.value("slots", int64_t{0});
  operation.token = line.value("token", int64_t{0});
  operation.mode = line.value("mode", int64_t{0});
  operation.client = line.value("client", "");
  bool makes_name = operation.act == TreeAct::kMkdir || operation.act == TreeAct::kCreate;
  if (operation.path.empty() && (makes_name || operation.act == TreeAct::kUnlink || operation.act == TreeAct::kRmdir ||
                                 operation.act == TreeAct::kRename)) {
    throw std::invalid_argument(op + " needs a path");
  }
  if (operation.first_slot < 0 || operation.slots < 0 || operation.first_slot + operation.slots > kSlots) {
    throw std::invalid_argument("slots out of range: " + line.dump());
  }
  return operation;
}

LockOperation LockOperationFrom(const nlohmann::json& line) {
  LockOperation operation;
  operation.session = line.value("session", "");
  if (line.at("op") == "lose_session") {
    operation.act = LockAct::kLoseSession;
    return operation;
  }
  std::string act = line.at("act").get<std::string>(), kind = line.at("kind").get<std::string>();
  if (act != "try" && act != "wait" && act != "unlock") throw std::invalid_argument("no such lock act: " + act);
  operation.act = act == "try" ? LockAct::kTry : act == "wait" ? LockAct::kWait : LockAct::kUnlock;
  // Record locks of processes and of open files meet each other; flock locks are a world of their own.
  operation.space = line.at("path").get<std::string>() + (kind == "flock" ? ":flock" : ":record");
  operation.owner = line.value("client", "") + ":" + operation.session + ":" + kind;
  operation.shared = line.value("shared", false);
  operation.start = line.value("start", int64_t{0});
  int64_t length = line.value("length", int64_t{0});
  operation.end = length == 0 ? kNever : operation.start + length;
  return operation;
}

LockFiles::Kind LockKindFrom(const nlohmann::json& line) {
  std::string kind = line.at("kind").get<std::string>();
  if (kind == "flock") return LockFiles::Kind::kFlock;
  if (kind == "process") return LockFiles::Kind::kProcess;
  if (kind == "file") return LockFiles::Kind::kOpenFile;
  throw std::invalid_argument("no such kind of lock: " + kind);
}

nlohmann::json ToJson(const TreeOperation& operation, const TreeResult& result) {
  nlohmann::json line{{"error", result.error}};
  if (result.error != 0) return line;
  switch (operation.act) {
    case TreeAct::kCreate: line["inode"] = result.inode; break;
    case TreeAct::kStat:
      line["inode"] = result.inode;
      line["links"] = result.links;
      line["size_slots"] = result.slots;
      line["mode_is"] = result.mode;
      break;
    case TreeAct::kReaddir: line["names"] = result.names; break;
    case TreeAct::kRead: line["tokens"] = result.tokens; break;
    case TreeAct::kGetxattr: line["token_is"] = result.token; break;
    default: break;
  }
  return line;
}

History ParseHistory(const std::string& text) {
  History history;
  std::set<std::pair<std::string, std::string>> opened;
  std::istringstream stream(text);
  for (std::string row; std::getline(stream, row);) {
    if (row.empty()) continue;
    nlohmann::json line = nlohmann::json::parse(row);
    std::string op = line.at("op").get<std::string>();
    CallInterval interval;
    bool is_known = false;
    SetOutcome(line, interval, is_known);
    if (IsTreeOp(op)) {
      TreeOperation operation = TreeOperationFrom(line);
      operation.interval = interval;
      if (is_known) operation.result = TreeResultFrom(line);
      history.tree.push_back(std::move(operation));
    } else if (op == "lock" || op == "lose_session") {
      LockOperation operation = LockOperationFrom(line);
      operation.interval = interval;
      if (is_known) operation.error = line["error"].get<int>();
      if (op == "lock") NoteOpen(line, operation, opened, history);
      history.locks.push_back(std::move(operation));
    } else {
      throw std::invalid_argument("no such operation: " + op);
    }
  }
  return history;
}

}  // namespace cairnfs::testing
