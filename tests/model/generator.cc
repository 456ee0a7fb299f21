#include "generator.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>

#include "differences.h"

namespace cairnfs::testing {
namespace {

const std::vector<std::string> kNames = {"f0",         "f1",    "f2",        "f3",          "f4",
                                         "f5",         "f6",    "f7",        "f8",          "f9",
                                         "a",          "b",     "c",         "d",           "model.pt",
                                         "x y",        "-dash", "tab\there", "new\nline",   "\xc3\xbcml\xc3\xa4ut",
                                         "\xff\xfe",   "...",   "quote\"'",  "back\\slash", "*?[]",
                                         "step-1.tmp", "step-1"};
constexpr size_t kFilesMax = 120;

bool TakesPathOfFile(Kind kind) {
  return kind == Kind::kTruncate || kind == Kind::kUnlinkOpen || kind == Kind::kPosixLock ||
         kind == Kind::kMmapShared || kind == Kind::kMmapPrivate || kind == Kind::kMmapRead || kind == Kind::kReplace;
}

bool MakesName(Kind kind) {
  return kind == Kind::kMkfifo || kind == Kind::kMksocket || kind == Kind::kMknod || kind == Kind::kMkdir;
}

}  // namespace

Generator::Generator(uint64_t seed, const World& plain) : random_(seed), plain_(plain) {
  for (const KindInfo& info : kKinds) weight_sum_ += info.weight;
}

void Generator::ScanBelow(const std::string& path, int depth) {
  for (const std::string& name : ListNames(plain_.root_fd(), path)) {
    size_t slash = name.rfind('/');
    std::string below = (path == "." ? "" : path + "/") + name.substr(0, slash);
    char type = name[slash + 1];
    all_.push_back(below);
    if (llistxattr((plain_.root_path() + "/" + below).c_str(), nullptr, 0) > 0) with_xattrs_.push_back(below);
    if (type == '-') files_.push_back(below);
    if (type == 'l') links_.push_back(below);
    if (type == 'd') {
      directories_.push_back(below);
      size_t known = all_.size();
      if (depth < 6) ScanBelow(below, depth + 1);
      if (all_.size() == known) empty_.push_back(below);
    }
  }
}

void Generator::Scan() {
  files_.clear();
  directories_ = {"."};
  empty_.clear();
  with_xattrs_.clear();
  links_.clear();
  all_.clear();
  ScanBelow(".", 0);
  steps_until_scan_ = 12;
}

std::string Generator::PickFrom(const std::vector<std::string>& known) {
  if (known.empty() || random_.Percent(4)) return NewPath();
  std::string path = random_.Pick(known);
  if (random_.OneIn(100)) return path + "/" + random_.Pick(kNames);  // below a file: ENOTDIR
  if (random_.OneIn(150)) return path + "/";
  return path;
}

std::string Generator::NewPath() {
  std::string directory = random_.Pick(directories_);
  if (std::count(directory.begin(), directory.end(), '/') > 3) directory = ".";
  std::string name = random_.Pick(kNames);
  return directory == "." ? name : directory + "/" + name;
}

std::string Generator::AnyPath() { return PickFrom(all_); }
std::string Generator::FilePath() { return random_.Percent(92) ? PickFrom(files_) : AnyPath(); }
std::string Generator::DirectoryPath() { return random_.Percent(92) ? PickFrom(directories_) : AnyPath(); }

int Generator::FlagsOfSlot(int slot) const {
  int fd = plain_.slot_fd(slot);
  return fd < 0 ? -1 : fcntl(fd, F_GETFL);
}

int Generator::PickSlot(bool want_regular) {
  int slot = static_cast<int>(random_.Below(kSlotCount));
  if (random_.OneIn(40)) return slot;
  for (int i = 0; i < kSlotCount; ++i, slot = (slot + 1) % kSlotCount) {
    struct stat info;
    if (plain_.slot_fd(slot) < 0 || fstat(plain_.slot_fd(slot), &info) != 0) continue;
    if (!want_regular || S_ISREG(info.st_mode)) return slot;
  }
  return slot;
}

uint64_t Generator::PickOffset(uint64_t size) {
  uint64_t dice = random_.Below(100);
  if (dice < 35) return random_.Below(std::min<uint64_t>(size, 64 << 20) + 1);
  if (dice < 50) return size;
  if (dice < 55) return size + random_.Below(10000);
  if (dice < 80) return random_.Skewed(128 << 10);
  if (dice < 93) return random_.Below(2 << 20);
  if (dice < 99) return random_.Below(8 << 20);
  return random_.OneIn(3) ? random_.Skewed(kLargestOffset) : 0;
}

uint64_t Generator::PickLength() {
  uint64_t dice = random_.Below(1000);
  if (dice < 100) return random_.Below(17);
  if (dice < 620) return random_.Skewed(20 << 10);
  if (dice < 920) return random_.Skewed(128 << 10);
  if (dice < 990) return random_.Below(400 << 10);
  return random_.Below(3 << 20);
}

uint64_t Generator::SizeOf(const Operation& operation) const {
  struct stat info;
  int rc = operation.a.empty() ? fstat(plain_.slot_fd(operation.slot), &info)
                               : fstatat(plain_.root_fd(), operation.a.c_str(), &info, AT_SYMLINK_NOFOLLOW);
  return rc == 0 && S_ISREG(info.st_mode) ? info.st_size : 0;
}

Kind Generator::PickKind() {
  if (all_.size() > kFilesMax && random_.OneIn(3)) return random_.OneIn(12) ? Kind::kRemoveTree : Kind::kUnlink;
  uint64_t dice = random_.Below(weight_sum_);
  for (size_t i = 0; i < kKindCount; ++i) {
    if (dice < kKinds[i].weight) return static_cast<Kind>(i);
    dice -= kKinds[i].weight;
  }
  return Kind::kStat;
}

void Generator::FillOpen(Operation& operation) {
  const int kModes[] = {O_RDWR, O_RDWR, O_RDWR, O_RDONLY, O_RDONLY, O_WRONLY};
  operation.flags = kModes[random_.Below(6)];
  bool creates = random_.Percent(40) || files_.size() < 5;
  operation.a = creates && random_.Percent(55) ? NewPath() : random_.OneIn(10) ? AnyPath() : FilePath();
  if (creates) operation.flags |= O_CREAT;
  if (random_.Percent(8)) operation.flags |= O_EXCL;
  if (random_.Percent(8)) operation.flags |= O_TRUNC;
  if (random_.Percent(12))
    operation.flags |= O_APPEND;
  else if (random_.Percent(9))
    operation.flags |= O_DIRECT;
  if (random_.Percent(3)) operation.flags |= O_SYNC;
  if (random_.Percent(3)) operation.flags |= O_DSYNC;
  if (random_.Percent(10)) operation.flags |= O_NOFOLLOW;
  if (random_.Percent(3)) operation.flags |= O_DIRECTORY;
  operation.slot = static_cast<int>(random_.Below(kSlotCount));
}

void Generator::FillRange(Operation& operation) {
  uint64_t size = SizeOf(operation);
  operation.offset = PickOffset(size);
  operation.offset2 = PickOffset(size);
  operation.length = PickLength();
  switch (operation.kind) {
    case Kind::kPread:
    case Kind::kReadv:
      if (random_.Percent(70)) operation.offset = random_.Below(size + 1);
      break;
    case Kind::kFallocate: operation.flags = random_.Percent(40) ? FALLOC_FL_KEEP_SIZE : 0; break;
    case Kind::kPunchHole: operation.flags = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE; break;
    case Kind::kZeroRange:
      operation.flags = FALLOC_FL_ZERO_RANGE | (random_.Percent(40) ? FALLOC_FL_KEEP_SIZE : 0);
      break;
    case Kind::kWritev: {
      const int kFlags[] = {0, 0, 0, 0, RWF_DSYNC, RWF_APPEND};
      operation.flags = kFlags[random_.Below(6)];
      break;
    }
    case Kind::kHugeOffset:
      operation.length = 1 + random_.Below(5000);
      operation.offset = 0x7fffffffffffffffULL - random_.Skewed(9000);
      break;
    default: break;
  }
  if (operation.kind != Kind::kHugeOffset && random_.OneIn(200)) operation.offset = ~0ULL - random_.Below(3);
}

void Generator::FillSlots(Operation& operation) {
  bool wants_regular = operation.kind != Kind::kClose && random_.Percent(97);
  operation.slot = PickSlot(wants_regular);
  operation.slot2 = PickSlot(wants_regular);
  int flags = FlagsOfSlot(operation.slot), flags2 = FlagsOfSlot(operation.slot2);
  bool moves = operation.kind == Kind::kCopyRange || operation.kind == Kind::kSendfile;
  bool direct = (flags >= 0 && flags & O_DIRECT) || (moves && flags2 >= 0 && flags2 & O_DIRECT);
  if (direct) {
    if (moves || operation.kind == Kind::kRead || operation.kind == Kind::kReopenUnlinked)
      operation.kind = Kind::kPread;
    if (operation.kind == Kind::kWrite) operation.kind = Kind::kPwrite;
    if (operation.kind == Kind::kHugeOffset) operation.kind = Kind::kFdatasync;
  }
  struct stat info;
  bool is_directory = flags >= 0 && fstat(plain_.slot_fd(operation.slot), &info) == 0 && !S_ISREG(info.st_mode);
  // Positions in a directory or a FIFO are nobody's contract.
  bool positions = operation.kind == Kind::kSeek || operation.kind == Kind::kSeekHole;
  if (is_directory && positions) operation.kind = Kind::kFsync;
  FillRange(operation);
  if (operation.kind == Kind::kSeek) operation.offset = random_.Below(300000);
  if (direct) AlignForDirect(operation);
}

void Generator::AlignForDirect(Operation& operation) {
  constexpr uint64_t kMask = ~4095ULL;
  operation.offset &= kMask;
  operation.offset2 &= kMask;
  operation.length = std::max<uint64_t>(operation.length & kMask, 4096);
  if (operation.offset > kLargestOffset) operation.offset = 0;
  if (operation.kind == Kind::kWritev) operation.flags &= ~RWF_APPEND;
}

void Generator::FillRename(Operation& operation) {
  bool directory = operation.kind == Kind::kRenameDirectory || random_.Percent(8);
  operation.a = directory ? DirectoryPath() : AnyPath();
  bool over_existing = operation.kind == Kind::kRenameExchange || random_.Percent(35);
  operation.b = !over_existing ? NewPath() : directory ? DirectoryPath() : AnyPath();
  if (random_.OneIn(60)) operation.b = operation.a + "/" + random_.Pick(kNames);  // into itself
}

void Generator::FillAttributes(Operation& operation) {
  const std::vector<std::string> kXattrs = {"user.a", "user.a", "user.a", "user.checkpoint.step", "user.b"};
  operation.a = random_.Percent(60) ? FilePath() : AnyPath();
  bool reads_xattr = operation.kind == Kind::kGetxattr || operation.kind == Kind::kRemovexattr;
  if (reads_xattr && !with_xattrs_.empty() && random_.Percent(75)) operation.a = random_.Pick(with_xattrs_);
  operation.b = random_.Pick(kXattrs);
  if (random_.OneIn(60)) operation.b = random_.OneIn(2) ? "user." : "bogus.name";
  if (random_.OneIn(80)) operation.b = "user." + std::string(251, 'n');
  switch (operation.kind) {
    case Kind::kSetxattr:
      operation.length = random_.OneIn(8) ? 0 : random_.Skewed(300);
      operation.flags = random_.OneIn(5) ? 1 : random_.OneIn(5) ? 2 : 0;  // XATTR_CREATE, XATTR_REPLACE
      break;
    case Kind::kChown: {
      const uint64_t kOwners[] = {0, 1000, 1001, 2000, 0xffffffffULL};
      operation.offset = kOwners[random_.Below(5)];
      operation.length = kOwners[random_.Below(5)];
      operation.flags = random_.Percent(70) ? AT_SYMLINK_NOFOLLOW : 0;
      break;
    }
    case Kind::kStat: operation.flags = random_.Percent(75) ? AT_SYMLINK_NOFOLLOW : 0; break;
    default: break;
  }
}

void Generator::Fill(Operation& operation) {
  switch (operation.kind) {
    case Kind::kOpen: return FillOpen(operation);
    case Kind::kRename:
    case Kind::kRenameDirectory:
    case Kind::kRenameNoreplace:
    case Kind::kRenameExchange: return FillRename(operation);
    case Kind::kLink:
      operation.a = random_.Percent(80) ? FilePath() : AnyPath();
      operation.b = random_.Percent(85) ? NewPath() : AnyPath();
      operation.flags = random_.OneIn(4) ? AT_SYMLINK_FOLLOW : 0;
      return;
    case Kind::kSymlink:
      operation.b = random_.Percent(85) ? NewPath() : AnyPath();
      operation.a = random_.OneIn(50) ? "" : random_.OneIn(50) ? std::string(4000, 't') : random_.Pick(kNames);
      if (random_.OneIn(5)) operation.a = "../" + operation.a;
      return;
    case Kind::kReadlink: operation.a = random_.Percent(85) ? PickFrom(links_) : AnyPath(); return;
    case Kind::kRmdir:
      operation.a = random_.Percent(60) && !empty_.empty() ? PickFrom(empty_) : DirectoryPath();
      return;
    case Kind::kRemoveTree: operation.a = DirectoryPath(); return;
    case Kind::kReaddir:
    case Kind::kFsyncDirectory: operation.a = DirectoryPath(); return;
    case Kind::kUnlink: operation.a = random_.Percent(70) ? FilePath() : AnyPath(); return;
    case Kind::kStatfs:
    case Kind::kAccess: operation.a = AnyPath(); return;
    case Kind::kTmpfile: operation.a = "."; return;
    case Kind::kLongName: operation.a = std::string(random_.OneIn(2) ? 255 : 256 + random_.Below(300), 'L'); return;
    case Kind::kChmod:
    case Kind::kChown:
    case Kind::kUtimens:
    case Kind::kSetxattr:
    case Kind::kGetxattr:
    case Kind::kListxattr:
    case Kind::kRemovexattr:
    case Kind::kStat: return FillAttributes(operation);
    case Kind::kSharedMkdir: operation.variant = random_.Below(40); return;
    default: break;
  }
  if (TakesPathOfFile(operation.kind)) {
    operation.a = FilePath();
    if (operation.kind == Kind::kReplace && random_.OneIn(4)) operation.a = NewPath();
    operation.slot = static_cast<int>(random_.Below(kSlotCount));
    return FillRange(operation);
  }
  if (MakesName(operation.kind)) {
    operation.a = random_.Percent(90) ? NewPath() : AnyPath();
    return;
  }
  FillSlots(operation);
}

Operation Generator::Next() {
  if (steps_until_scan_ == 0) Scan();
  --steps_until_scan_;
  Operation operation;
  operation.kind = PickKind();
  operation.content = random_.OneIn(3) ? random_.Below(16) : random_.Next();  // equal contents come again
  operation.variant = random_.Next() >> 1;
  const mode_t kFileModes[] = {0644, 0644, 0600, 0666, 0444, 04755, 02755, 06755, 0, 0777};
  const mode_t kDirectoryModes[] = {0755, 0777, 0777, 0700, 01777, 02775, 02777, 0555};
  bool directory = operation.kind == Kind::kMkdir;
  operation.mode = directory ? kDirectoryModes[random_.Below(8)] : kFileModes[random_.Below(10)];
  if (random_.Percent(22)) operation.uid = random_.OneIn(3) ? 1001 : 1000;
  // Where ext4 refuses the offset it leaves the set-id bits alone, which a write that succeeds clears.
  if (operation.kind == Kind::kHugeOffset) operation.uid = 0;
  // The kernel passes a chown that sets nothing on like the set-id bits that a write takes away (differences.h).
  constexpr uint64_t kUnset = 0xffffffff;
  Fill(operation);
  if (operation.kind == Kind::kChown && operation.offset == kUnset && operation.length == kUnset) operation.uid = 0;
  return operation;
}

}  // namespace cairnfs::testing
