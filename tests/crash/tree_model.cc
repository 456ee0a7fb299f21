#include "tree_model.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace cairnfs::testing {
namespace {

std::string Line(char type, uint32_t mode, uint64_t links, const std::string& target,
                 const std::map<std::string, std::string>& xattrs) {
  std::string line = fmt::format("{} {:o} links {}", type, type == 'l' ? 0777 : mode, type == 'd' ? 1 : links);
  if (!target.empty()) line += " -> " + target;
  for (const auto& [name, value] : xattrs) line += fmt::format(" {}={}", name, value);
  return line;
}

std::map<std::string, std::string> ReadXattrs(const std::string& path) {
  std::map<std::string, std::string> xattrs;
  char names[4096], value[4096];
  ssize_t size = llistxattr(path.c_str(), names, sizeof(names));
  for (const char* name = names; size > 0 && name < names + size; name += strlen(name) + 1) {
    ssize_t length = lgetxattr(path.c_str(), name, value, sizeof(value));
    xattrs[name] = length < 0 ? strerrorname_np(errno) : std::string(value, length);
  }
  return xattrs;
}

void ReadBelow(const std::string& root, const std::string& prefix, TreeLines& lines) {
  DIR* directory = opendir((root + "/" + prefix).c_str());
  if (directory == nullptr) {
    lines[prefix + "!"] = fmt::format("cannot be listed: {}", strerror(errno));
    return;
  }
  while (dirent* entry = readdir(directory)) {
    std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    std::string path = prefix.empty() ? name : prefix + "/" + name;
    std::string full = root + "/" + path;
    struct stat info;
    if (lstat(full.c_str(), &info) != 0) {
      lines[path] = fmt::format("is listed, but lstat fails: {}", strerror(errno));
      continue;
    }
    char type = S_ISDIR(info.st_mode) ? 'd' : S_ISLNK(info.st_mode) ? 'l' : S_ISREG(info.st_mode) ? 'f' : '?';
    char target[4096];
    ssize_t size = type == 'l' ? readlink(full.c_str(), target, sizeof(target)) : 0;
    lines[path] =
        Line(type, info.st_mode & 07777, info.st_nlink, std::string(target, size < 0 ? 0 : size), ReadXattrs(full));
    if (type == 'd') ReadBelow(root, path, lines);
  }
  closedir(directory);
}

}  // namespace

void TreeModel::Drop(const std::string& path) {
  auto found = nodes_.find(path);
  if (found == nodes_.end()) return;
  --found->second->links;
  nodes_.erase(found);
}

void TreeModel::Apply(const Record& record) {
  auto add = [&](const std::string& path, char type) {
    auto node = std::make_shared<Node>();
    node->type = type;
    node->mode = record.mode;
    node->file = record.file;
    nodes_[path] = node;
    return node;
  };
  switch (record.step) {
    case Step::kMkdir: add(record.a, 'd'); break;
    case Step::kCreate: add(record.a, 'f'); break;
    case Step::kSymlink: add(record.a, 'l')->target = record.b; break;
    case Step::kLink:
      nodes_[record.b] = nodes_.at(record.a);
      ++nodes_.at(record.a)->links;
      break;
    case Step::kUnlink:
    case Step::kRmdir: Drop(record.a); break;
    case Step::kChmod: nodes_.at(record.a)->mode = record.mode; break;
    case Step::kSetxattr: nodes_.at(record.a)->xattrs["user.test"] = record.b; break;
    case Step::kRenameFile: {
      auto node = nodes_.at(record.a);
      if (nodes_.count(record.b) != 0 && nodes_.at(record.b) == node) break;  // two links of one file: nothing happens
      Drop(record.b);
      nodes_.erase(record.a);
      nodes_[record.b] = node;
      break;
    }
    case Step::kRenameDirectory: {
      std::map<std::string, std::shared_ptr<Node>> moved;
      for (auto it = nodes_.lower_bound(record.a); it != nodes_.end() && it->first.starts_with(record.a);) {
        bool inside = it->first.size() == record.a.size() || it->first[record.a.size()] == '/';
        if (!inside) {
          ++it;
          continue;
        }
        moved[record.b + it->first.substr(record.a.size())] = it->second;
        it = nodes_.erase(it);
      }
      nodes_.insert(moved.begin(), moved.end());
      break;
    }
    default: abort();
  }
}

TreeLines TreeModel::Lines() const {
  TreeLines lines;
  for (const auto& [path, node] : nodes_) {
    lines[path] = Line(node->type, node->mode, node->links, node->target, node->xattrs);
  }
  return lines;
}

std::map<std::string, int> TreeModel::Files() const {
  std::map<std::string, int> files;
  for (const auto& [path, node] : nodes_) {
    if (node->type == 'f') files[path] = node->file;
  }
  return files;
}

TreeLines ReadTree(const std::string& root) {
  TreeLines lines;
  ReadBelow(root, "", lines);
  return lines;
}

std::string Difference(const TreeLines& expected, const TreeLines& found) {
  std::string text;
  int lines = 0;
  auto add = [&](const std::string& line) {
    if (++lines <= 8) text += "\n      " + line;
  };
  for (const auto& [path, line] : expected) {
    auto other = found.find(path);
    if (other == found.end())
      add("missing: " + path + " (" + line + ")");
    else if (other->second != line)
      add(path + ": " + other->second + " instead of " + line);
  }
  for (const auto& [path, line] : found) {
    if (expected.count(path) == 0) add("too many: " + path + " (" + line + ")");
  }
  return lines == 0 ? " nothing" : text;
}

}  // namespace cairnfs::testing
