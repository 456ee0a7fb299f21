#include "tree_state.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace cairnfs::testing {
namespace {

class Writer {
 public:
  void Number(int64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  void Text(const std::string& text) {
    Number(static_cast<int64_t>(text.size()));
    bytes_ += text;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Of what Writer wrote; the states never leave the process, so anything else is a bug here.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  int64_t Number() {
    int64_t value = 0;
    assert(position_ + sizeof(value) <= bytes_.size());
    std::memcpy(&value, bytes_.data() + position_, sizeof(value));
    position_ += sizeof(value);
    return value;
  }
  std::string Text() {
    size_t size = static_cast<size_t>(Number());
    assert(position_ + size <= bytes_.size());
    position_ += size;
    return bytes_.substr(position_ - size, size);
  }

 private:
  const std::string& bytes_;
  size_t position_ = 0;
};

// New numbers for the inodes that something leads to.
class Numbering {
 public:
  Numbering(const std::vector<InodeState>& inodes, const std::vector<RunningState>& running)
      : inodes_(inodes), numbers_(inodes.size(), kNoInode) {
    Visit(kRoot);
    for (const RunningState& call : running) {
      Visit(call.at);
      Visit(call.target_at);
      Visit(call.source);
    }
  }

  const std::vector<int>& order() const { return order_; }
  int Of(int index) const { return index == kNoInode ? kNoInode : numbers_[static_cast<size_t>(index)]; }

 private:
  void Visit(int index) {
    if (index == kNoInode || Of(index) != kNoInode) return;
    numbers_[static_cast<size_t>(index)] = static_cast<int>(order_.size());
    order_.push_back(index);
    for (const auto& [name, child] : inodes_[static_cast<size_t>(index)].entries) Visit(child);
  }

  const std::vector<InodeState>& inodes_;
  std::vector<int> numbers_, order_;
};

}  // namespace

TreeState TreeState::New() {
  TreeState state;
  InodeState root;
  root.is_directory = true;
  root.links = 1;
  root.mode = 0755;
  state.inodes_.push_back(root);
  return state;
}

std::string TreeState::Encode() const {
  Numbering numbering(inodes_, running_);
  Writer writer;
  writer.Number(static_cast<int64_t>(numbering.order().size()));
  for (int index : numbering.order()) {
    const InodeState& inode = this->inode(index);
    for (int64_t value : {int64_t{inode.is_directory}, inode.number, inode.links, inode.slots, inode.mode, inode.xattr})
      writer.Number(value);
    for (int64_t token : inode.tokens) writer.Number(token);
    writer.Number(static_cast<int64_t>(inode.entries.size()));
    for (const auto& [name, child] : inode.entries) {
      writer.Text(name);
      writer.Number(numbering.Of(child));
    }
  }
  writer.Number(static_cast<int64_t>(running_.size()));
  for (const RunningState& call : running_) {
    writer.Number(static_cast<int64_t>(call.operation));
    writer.Number(static_cast<int64_t>(call.steps_done));
    for (int index : {call.at, call.target_at, call.source}) writer.Number(numbering.Of(index));
    writer.Number(call.finished);
  }
  return writer.Take();
}

TreeState TreeState::Decode(const std::string& bytes) {
  Reader reader(bytes);
  TreeState state;
  state.inodes_.resize(static_cast<size_t>(reader.Number()));
  for (InodeState& inode : state.inodes_) {
    inode.is_directory = reader.Number() != 0;
    for (int64_t* value : {&inode.number, &inode.links, &inode.slots, &inode.mode, &inode.xattr})
      *value = reader.Number();
    for (int64_t& token : inode.tokens) token = reader.Number();
    for (int64_t left = reader.Number(); left > 0; --left) {
      std::string name = reader.Text();
      inode.entries[name] = static_cast<int>(reader.Number());
    }
  }
  state.running_.resize(static_cast<size_t>(reader.Number()));
  for (RunningState& call : state.running_) {
    call.operation = static_cast<size_t>(reader.Number());
    call.steps_done = static_cast<size_t>(reader.Number());
    for (int* index : {&call.at, &call.target_at, &call.source}) *index = static_cast<int>(reader.Number());
    call.finished = reader.Number() != 0;
  }
  return state;
}

int TreeState::Add(InodeState inode) {
  inodes_.push_back(std::move(inode));
  return static_cast<int>(inodes_.size()) - 1;
}

int TreeState::Lookup(int directory, const std::string& name) const {
  const InodeState& parent = inode(directory);
  auto entry = parent.entries.find(name);
  return entry == parent.entries.end() ? kNoInode : entry->second;
}

bool TreeState::IsSelfOrBelow(int index, int ancestor) const {
  if (index == ancestor) return true;
  for (const auto& [name, child] : inode(ancestor).entries) {
    if (inode(child).is_directory && IsSelfOrBelow(index, child)) return true;
  }
  return false;
}

bool TreeState::Bind(int index, int64_t number) {
  if (number == 0 || inode(index).number == number) return true;
  if (inode(index).number != 0) return false;
  for (const InodeState& other : inodes_) {
    if (other.number == number) return false;
  }
  inode(index).number = number;
  return true;
}

RunningState& TreeState::Running(size_t operation) {
  auto place = std::lower_bound(running_.begin(), running_.end(), operation,
                                [](const RunningState& call, size_t wanted) { return call.operation < wanted; });
  if (place == running_.end() || place->operation != operation) {
    place = running_.insert(place, RunningState{});
    place->operation = operation;
  }
  return *place;
}

void TreeState::EndRunning(size_t operation) {
  std::erase_if(running_, [operation](const RunningState& call) { return call.operation == operation; });
}

}  // namespace cairnfs::testing
