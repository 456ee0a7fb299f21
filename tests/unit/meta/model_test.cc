// Random operations on the namespace and on a small model of it, compared after each step.
//
// The model is a tree in memory that says what POSIX says in the plainest way. CAIRNFS_TEST_SEED replays a run.
#include <map>
#include <random>
#include <set>

#include "../../support/sanitizers.h"
#include "fixture.h"

namespace cairnfs::meta {
namespace {

using Code = std::string;  // "ok" or the name of an ErrorCode
const Code kOk = "ok";

Code Named(ErrorCode code) { return std::string(ErrorCodeName(code)); }

struct Node {
  uint32_t mode = 0;
  uint32_t nlink = 1;
  uint64_t parent = 0;
  std::map<std::string, uint64_t> children;
  std::map<std::string, std::string> xattrs;
  bool IsDirectory() const { return S_ISDIR(mode); }
};

class Model {
 public:
  Model() {
    nodes_[1].mode = S_IFDIR | 0755;
    nodes_[1].parent = 1;
  }
  std::map<uint64_t, Node>& nodes() { return nodes_; }

  Code CheckDirectory(uint64_t directory) {
    auto node = nodes_.find(directory);
    if (node == nodes_.end()) return Named(ErrorCode::kNotFound);
    if (!node->second.IsDirectory()) return Named(ErrorCode::kNotDirectory);
    return node->second.nlink == 0 ? Named(ErrorCode::kNotFound) : kOk;
  }
  uint64_t Child(uint64_t directory, const std::string& name) {
    auto& children = nodes_[directory].children;
    auto child = children.find(name);
    return child == children.end() ? 0 : child->second;
  }
  Code Find(uint64_t directory, const std::string& name, uint64_t& child) {
    if (Code code = CheckDirectory(directory); code != kOk) return code;
    child = Child(directory, name);
    return child == 0 ? Named(ErrorCode::kNotFound) : kOk;
  }
  Code CanCreate(uint64_t parent, const std::string& name) {
    if (Code code = CheckDirectory(parent); code != kOk) return code;
    return Child(parent, name) != 0 ? Named(ErrorCode::kAlreadyExists) : kOk;
  }
  void Created(uint64_t parent, const std::string& name, uint64_t inode, uint32_t mode) {
    nodes_[parent].children[name] = inode;
    nodes_[inode].mode = mode;
    if (S_ISDIR(mode)) nodes_[inode].parent = parent;
  }
  Code Link(uint64_t inode, uint64_t parent, const std::string& name) {
    if (Code code = CheckDirectory(parent); code != kOk) return code;
    auto node = nodes_.find(inode);
    if (node == nodes_.end()) return Named(ErrorCode::kNotFound);
    if (node->second.IsDirectory()) return Named(ErrorCode::kPermission);
    if (node->second.nlink == 0) return Named(ErrorCode::kNotFound);
    if (Child(parent, name) != 0) return Named(ErrorCode::kAlreadyExists);
    node->second.nlink++;
    nodes_[parent].children[name] = inode;
    return kOk;
  }
  Code Remove(uint64_t parent, const std::string& name, bool directory) {
    uint64_t child = 0;
    if (Code code = Find(parent, name, child); code != kOk) return code;
    Node& node = nodes_[child];
    if (!directory && node.IsDirectory()) return Named(ErrorCode::kIsDirectory);
    if (directory && !node.IsDirectory()) return Named(ErrorCode::kNotDirectory);
    if (!node.children.empty()) return Named(ErrorCode::kNotEmpty);
    node.nlink--;
    nodes_[parent].children.erase(name);
    return kOk;
  }
  bool IsAbove(uint64_t directory, uint64_t below) {
    for (;; below = nodes_[below].parent) {
      if (below == directory) return true;
      if (below == 1) return false;
    }
  }
  Code Rename(uint64_t from_parent, const std::string& from_name, uint64_t to_parent, const std::string& to_name,
              RenameMode mode) {
    uint64_t from = 0;
    if (Code code = Find(from_parent, from_name, from); code != kOk) return code;
    if (Code code = CheckDirectory(to_parent); code != kOk) return code;
    const uint64_t to = Child(to_parent, to_name);
    if (to != 0 && mode == RenameMode::kNoReplace) return Named(ErrorCode::kAlreadyExists);
    if (to == 0 && mode == RenameMode::kExchange) return Named(ErrorCode::kNotFound);
    const bool from_is_directory = nodes_[from].IsDirectory();
    const bool to_is_directory = to != 0 && nodes_[to].IsDirectory();
    if (from_is_directory && IsAbove(from, to_parent)) return Named(ErrorCode::kInvalidArgument);
    if (mode == RenameMode::kExchange && to_is_directory && IsAbove(to, from_parent)) {
      return Named(ErrorCode::kInvalidArgument);
    }
    if (from == to) return kOk;
    if (mode == RenameMode::kExchange) {
      Place(from_parent, from_name, to);
      Place(to_parent, to_name, from);
      return kOk;
    }
    if (to != 0) {
      if (from_is_directory && !to_is_directory) return Named(ErrorCode::kNotDirectory);
      if (!from_is_directory && to_is_directory) return Named(ErrorCode::kIsDirectory);
      if (!nodes_[to].children.empty()) return Named(ErrorCode::kNotEmpty);
      nodes_[to].nlink--;
    }
    nodes_[from_parent].children.erase(from_name);
    Place(to_parent, to_name, from);
    return kOk;
  }

 private:
  void Place(uint64_t parent, const std::string& name, uint64_t inode) {
    nodes_[parent].children[name] = inode;
    if (nodes_[inode].IsDirectory()) nodes_[inode].parent = parent;
  }
  std::map<uint64_t, Node> nodes_;
};

class ModelTest : public NamespaceTest {
 protected:
  uint64_t AnyInode() {
    if (random_() % 50 == 0) return 123456;  // there is none
    auto node = model_.nodes().begin();
    std::advance(node, static_cast<int64_t>(random_() % model_.nodes().size()));
    return node->first;
  }
  // Mostly a directory that exists.
  uint64_t AnyDirectory() {
    for (int i = 0; i < 20; i++) {
      const uint64_t inode = AnyInode();
      if (model_.CheckDirectory(inode) == kOk) return inode;
    }
    return AnyInode();
  }
  std::string AnyName() { return std::string(1, static_cast<char>('a' + random_() % 6)); }

  void Step();
  void Create();
  void Rename();
  void Xattr();
  void RemoveOrphans();
  void CompareAll();
  void Expect(const char* operation, const Code& actual, const Code& expected) {
    ASSERT_EQ(actual, expected) << operation << " at step " << step_;
    counts_[std::string(operation) + " " + actual]++;
  }

  Model model_;
  std::mt19937 random_;
  int step_ = 0;
  std::map<std::string, int> counts_;
};

void ModelTest::Create() {
  const uint32_t types[] = {S_IFREG, S_IFREG, S_IFDIR, S_IFDIR, S_IFLNK, S_IFIFO};
  CreateParams params;
  params.mode = types[random_() % std::size(types)] | 0700;
  if (S_ISLNK(params.mode)) params.symlink_target = "t";
  const uint64_t parent = AnyDirectory();
  const std::string name = AnyName();
  const Code expected = model_.CanCreate(parent, name);
  auto created = names().Create({}, InodeId{parent}, name, params);
  Expect("create", Outcome(created), expected);
  if (created.ok()) model_.Created(parent, name, created->inode.value, params.mode);
}

void ModelTest::Rename() {
  const uint64_t from = AnyDirectory(), to = random_() % 2 == 0 ? from : AnyDirectory();
  const std::string from_name = AnyName(), to_name = AnyName();
  const RenameMode modes[] = {RenameMode::kReplace, RenameMode::kReplace, RenameMode::kNoReplace,
                              RenameMode::kExchange};
  const RenameMode mode = modes[random_() % std::size(modes)];
  const Code expected = model_.Rename(from, from_name, to, to_name, mode);
  Expect("rename", Outcome(Move(InodeId{from}, from_name, InodeId{to}, to_name, mode)), expected);
}

void ModelTest::Xattr() {
  const uint64_t inode = AnyInode();
  const std::string name = "user." + AnyName();
  auto node = model_.nodes().find(inode);
  const bool exists = node != model_.nodes().end();
  const bool has = exists && node->second.xattrs.contains(name);
  Code expected = exists ? kOk : Named(ErrorCode::kNotFound);
  if (random_() % 3 == 0) {
    if (exists && !has) expected = Named(ErrorCode::kNoData);
    Expect("removexattr", Outcome(names().RemoveXattr({}, InodeId{inode}, name)), expected);
    if (has) node->second.xattrs.erase(name);
    return;
  }
  const auto mode = static_cast<Namespace::XattrMode>(random_() % 3);
  if (exists && has && mode == Namespace::XattrMode::kCreate) expected = Named(ErrorCode::kAlreadyExists);
  if (exists && !has && mode == Namespace::XattrMode::kReplace) expected = Named(ErrorCode::kNoData);
  const std::string value = std::to_string(random_());
  Expect("setxattr", Outcome(names().SetXattr({}, InodeId{inode}, name, value, mode)), expected);
  if (expected == kOk) node->second.xattrs[name] = value;
}

void ModelTest::RemoveOrphans() {
  std::vector<InodeId> inodes;
  for (const auto& [inode, node] : model_.nodes()) {
    if (random_() % 2 == 0) inodes.push_back(InodeId{inode});
  }
  Expect("remove orphans", Outcome(names().RemoveOrphans({}, inodes)), kOk);
  for (InodeId inode : inodes) {
    if (model_.nodes()[inode.value].nlink == 0) model_.nodes().erase(inode.value);
  }
}

void ModelTest::Step() {
  const uint64_t parent = AnyDirectory();
  const std::string name = AnyName();
  switch (random_() % 12) {
    case 0:
    case 1:
    case 2: return Create();
    case 3:
    case 4:
    case 5: return Rename();
    case 6: {
      const uint64_t inode = AnyInode();
      const Code expected = model_.Link(inode, parent, name);
      // Of two errors at once the model names one and the namespace perhaps the other.
      const Code actual = Outcome(names().Link({}, InodeId{inode}, InodeId{parent}, name));
      if (expected != kOk && actual != kOk) return;
      return Expect("link", actual, expected);
    }
    case 7: {
      const Code expected = model_.Remove(parent, name, false);
      return Expect("unlink", Outcome(names().Unlink({}, InodeId{parent}, name)), expected);
    }
    case 8: {
      const Code expected = model_.Remove(parent, name, true);
      return Expect("rmdir", Outcome(names().Rmdir({}, InodeId{parent}, name)), expected);
    }
    case 9: {
      uint64_t child = 0;
      const Code expected = model_.Find(parent, name, child);
      auto found = names().Lookup({}, InodeId{parent}, name);
      Expect("lookup", Outcome(found), expected);
      if (found.ok()) {
        EXPECT_EQ(found->inode.value, child);
      }
      return;
    }
    case 10: return Xattr();
    default:
      if (random_() % 20 == 0) RemoveOrphans();
  }
}

void ModelTest::CompareAll() {
  std::set<InodeId> orphans;
  size_t xattr_count = 0, dentry_count = 0;
  for (const auto& [inode, node] : model_.nodes()) {
    const InodeId id{inode};
    const Attr attr = AttrNow(id);
    ASSERT_EQ(attr.mode, node.mode);
    ASSERT_EQ(attr.nlink, node.nlink) << "inode " << inode << " at step " << step_;
    if (node.nlink == 0) orphans.insert(id);
    for (const auto& [name, value] : node.xattrs) ASSERT_EQ(*names().GetXattr({}, id, name), value);
    ASSERT_EQ(names().ListXattrs({}, id)->size(), node.xattrs.size());
    xattr_count += node.xattrs.size();
    if (!node.IsDirectory()) continue;
    if (node.nlink > 0) {
      ASSERT_EQ(names().ParentOf({}, id)->value, node.parent);
    }
    auto entries = names().ReadDirectory({}, id, "", 1 << 20);
    ASSERT_TRUE(entries.ok());
    ASSERT_EQ(entries->size(), node.children.size());
    auto child = node.children.begin();
    for (const auto& entry : *entries) {
      ASSERT_EQ(entry.name, child->first);
      ASSERT_EQ(entry.inode.value, child->second);
      ASSERT_EQ(entry.type, model_.nodes()[child->second].mode & S_IFMT);
      ++child;
    }
    dentry_count += node.children.size();
  }
  auto listed = names().ListOrphans({});
  ASSERT_EQ(std::set<InodeId>(listed->begin(), listed->end()), orphans);
  // Nothing is left behind that nobody can reach.
  ASSERT_EQ(KeyCount("I"), model_.nodes().size());
  ASSERT_EQ(KeyCount("E"), dentry_count);
  ASSERT_EQ(KeyCount("X"), xattr_count);
}

TEST_F(ModelTest, RandomOperations) {
  const char* given = std::getenv("CAIRNFS_TEST_SEED");
  const unsigned seed =
      given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
  std::cout << "CAIRNFS_TEST_SEED=" << seed << "\n";
  random_.seed(seed);
  constexpr int kSteps = 20000 / kSlowdown;
  for (step_ = 0; step_ < kSteps; step_++) {
    Step();
    if (HasFatalFailure()) return;
    if (step_ % 500 == 0) CompareAll();
    if (HasFatalFailure()) return;
    // Now and then what was done so far moves to the engine.
    if (step_ % 3000 == 2999) {
      EXPECT_OK(local_->Sync({}));
    }
  }
  CompareAll();
  for (const auto& [what, count] : counts_) std::cout << what << ": " << count << "\n";
  EXPECT_GT(counts_["rename ok"], kSteps / 40);
}

}  // namespace
}  // namespace cairnfs::meta
