#include "replay.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace cairnfs::testing {
namespace {

constexpr uint64_t kSectorBytes = 512;

int OpenOrExit(const std::string& path, int flags) {
  int fd = open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (fd < 0) {
    perror(path.c_str());
    exit(2);
  }
  return fd;
}

void WriteOrExit(int fd, const char* data, size_t length, uint64_t offset) {
  if (pwrite(fd, data, length, static_cast<off_t>(offset)) != static_cast<ssize_t>(length)) {
    perror("writing an image");
    exit(2);
  }
}

enum class Fate { kKept, kDropped, kTorn };
struct Tally {
  uint64_t kept = 0, dropped = 0, torn = 0;
};

// How the writes of one cut fare: a choice for all of them first, since the nastiest images are not the average ones.
class Fates {
 public:
  Fates(Random& random, uint64_t count) : random_(random), count_(count), manner_(random.Below(8)) {
    border_ = count == 0 ? 0 : random.Below(count + 1);
  }
  Fate Of(uint64_t index) {
    switch (manner_) {
      case 0: return Fate::kDropped;                                   // all lost
      case 1: return index == count_ - 1 ? Fate::kTorn : Fate::kKept;  // in order, the last one torn
      case 2: return index >= border_ ? Fate::kKept : Fate::kDropped;  // later ones overtook earlier ones
      case 3: return index == border_ ? Fate::kDropped : Fate::kKept;  // one is missing
      case 4: return random_.OneIn(8) ? Fate::kKept : Fate::kDropped;  // few made it
      default: return random_.OneIn(2) ? Fate::kKept : random_.OneIn(3) ? Fate::kTorn : Fate::kDropped;
    }
  }
  bool shuffles() const { return manner_ >= 5; }
  uint64_t manner() const { return manner_; }

 private:
  Random& random_;
  uint64_t count_, manner_, border_;
};

void WriteTorn(int fd, const DeviceLog::Entry& entry, Random& random) {
  for (uint64_t at = 0; at < entry.length; at += kSectorBytes) {
    if (random.OneIn(2)) WriteOrExit(fd, entry.data + at, std::min(kSectorBytes, entry.length - at), entry.offset + at);
  }
}

}  // namespace

void CopySparse(const std::string& from, const std::string& to) {
  unlink(to.c_str());
  int source = OpenOrExit(from, O_RDONLY), target = OpenOrExit(to, O_RDWR | O_CREAT | O_TRUNC);
  struct stat info;
  fstat(source, &info);
  if (ftruncate(target, info.st_size) != 0) exit(2);
  std::string buffer(1 << 20, '\0');
  for (off_t begin = 0; (begin = lseek(source, begin, SEEK_DATA)) >= 0;) {
    off_t end = lseek(source, begin, SEEK_HOLE);
    while (begin < end) {
      ssize_t count = pread(source, buffer.data(), std::min<uint64_t>(buffer.size(), end - begin), begin);
      if (count <= 0) exit(2);
      WriteOrExit(target, buffer.data(), static_cast<size_t>(count), static_cast<uint64_t>(begin));
      begin += count;
    }
  }
  close(source);
  close(target);
}

Replay::Replay(const DeviceLog& log, const std::vector<Images>& images)
    : log_(log), images_(images), applied_(images.size()) {
  for (const Images& device : images_) CopySparse(device.base, device.safe);
}

std::string Replay::Cut(uint64_t position, Random& random) {
  std::string text;
  for (uint32_t device = 0; device < images_.size(); ++device) {
    text += (device == 0 ? "" : "; ") + CutDevice(device, position, random);
  }
  return text;
}

std::string Replay::CutDevice(uint32_t device, uint64_t position, Random& random) {
  const Images& images = images_[device];
  uint64_t safe = log_.SafeAt(position, device);
  int fd = OpenOrExit(images.safe, O_RDWR);
  for (uint64_t& applied = applied_[device]; applied < safe; ++applied) {
    const DeviceLog::Entry& entry = log_.entries()[applied];
    if (entry.device != device || entry.kind != LogEntryHeader::kWrite) continue;
    WriteOrExit(fd, entry.data, entry.length, entry.offset);
  }
  close(fd);
  CopySparse(images.safe, images.cut);
  std::vector<const DeviceLog::Entry*> loose;
  for (uint64_t i = safe; i < position; ++i) {
    const DeviceLog::Entry& entry = log_.entries()[i];
    if (entry.device == device && entry.kind == LogEntryHeader::kWrite) loose.push_back(&entry);
  }
  Fates fates(random, loose.size());
  Tally tally;
  std::vector<std::pair<const DeviceLog::Entry*, Fate>> survivors;
  for (size_t i = 0; i < loose.size(); ++i) {
    Fate fate = fates.Of(i);
    tally.kept += fate == Fate::kKept;
    tally.dropped += fate == Fate::kDropped;
    tally.torn += fate == Fate::kTorn;
    if (fate != Fate::kDropped) survivors.emplace_back(loose[i], fate);
  }
  if (fates.shuffles()) {
    for (size_t i = survivors.size(); i > 1; --i) std::swap(survivors[i - 1], survivors[random.Below(i)]);
  }
  fd = OpenOrExit(images.cut, O_RDWR);
  for (const auto& [entry, fate] : survivors) {
    if (fate == Fate::kTorn)
      WriteTorn(fd, *entry, random);
    else
      WriteOrExit(fd, entry->data, entry->length, entry->offset);
  }
  close(fd);
  return fmt::format("{} kept, {} dropped, {} torn (manner {})", tally.kept, tally.dropped, tally.torn, fates.manner());
}

}  // namespace cairnfs::testing
