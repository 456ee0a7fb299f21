#include "commands.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "content.h"

namespace cairnfs::bench {
namespace {

// buffer BYTES: memory for what is saved; once per process.
Answer MakeBuffer(LoadState& state, Arguments& arguments) {
  if (!state.buffer.empty()) throw LoadError("the buffer is there already");
  state.buffer = MapTouched(arguments.Number());
  return {};
}

// warm BYTES: touches so much memory and gives it back, so that the page cache does not get pages that the hypervisor
// must find first.
Answer Warm(LoadState&, Arguments& arguments) {
  MutableByteSpan memory = MapTouched(arguments.Number());
  munmap(memory.data(), memory.size());
  return {};
}

// fill SEED OFFSET BYTES
Answer Fill(LoadState& state, Arguments& arguments) {
  uint64_t seed = arguments.Number();
  uint64_t offset = arguments.Number();
  FillContent(seed, state.Part(offset, arguments.Number()));
  return {};
}

// tensors SEED OFFSET BYTES TENSOR_BYTES [EVERY OTHER_SEED]: tensor i comes from SEED and i; each EVERY-th one from
// OTHER_SEED instead.
Answer FillTensors(LoadState& state, Arguments& arguments) {
  uint64_t seed = arguments.Number();
  uint64_t offset = arguments.Number();
  MutableByteSpan part = state.Part(offset, arguments.Number());
  uint64_t tensor_bytes = arguments.Number();
  uint64_t every = arguments.AtEnd() ? 0 : arguments.Number();
  uint64_t other_seed = every == 0 ? 0 : arguments.Number();
  uint64_t changed_bytes = 0;
  for (uint64_t i = 0; i * tensor_bytes < part.size(); i++) {
    MutableByteSpan tensor = part.subspan(i * tensor_bytes, std::min(tensor_bytes, part.size() - i * tensor_bytes));
    bool changed = every != 0 && i % every == every - 1;
    if (changed) changed_bytes += tensor.size();
    FillContent(MixSeeds(changed ? other_seed : seed, i), tensor);
  }
  return {{"changed_bytes", static_cast<double>(changed_bytes)}};
}

// text OFFSET HEX: these very bytes.
Answer PutText(LoadState& state, Arguments& arguments) {
  uint64_t offset = arguments.Number();
  const std::string& hex = arguments.Text();
  MutableByteSpan part = state.Part(offset, hex.size() / 2);
  for (size_t i = 0; i < part.size(); i++) {
    part[i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return {};
}

}  // namespace

void ThrowErrno(const std::string& what) { throw LoadError(what + ": " + std::strerror(errno)); }

const std::string& Arguments::Text() {
  if (AtEnd()) throw LoadError("a word is missing in the command");
  return words_[next_++];
}

uint64_t Arguments::Number() {
  const std::string& word = Text();
  uint64_t value = 0;
  auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (code != std::errc() || end != word.data() + word.size()) throw LoadError("not a number: " + word);
  return value;
}

MutableByteSpan LoadState::Part(uint64_t offset, uint64_t size) const {
  if (offset > buffer.size() || size > buffer.size() - offset) throw LoadError("past the end of the buffer");
  return buffer.subspan(offset, size);
}

Descriptor::Descriptor(const std::string& path, int flags, unsigned mode)
    : path_(path), fd_(open(path.c_str(), flags | O_CLOEXEC, mode)) {
  if (fd_ < 0) ThrowErrno(path);
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

void Descriptor::Sync() {
  if (fsync(fd_) != 0) ThrowErrno("fsync of " + path_);
}

void Descriptor::Close() {
  if (close(std::exchange(fd_, -1)) != 0) ThrowErrno("close of " + path_);
}

void WriteAll(int fd, ByteSpan bytes) {
  while (!bytes.empty()) {
    ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0) ThrowErrno("write");
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

void SyncDirectory(const std::string& path) { Descriptor(path, O_RDONLY | O_DIRECTORY).Sync(); }

void AddMemoryCommands(CommandTable& table) {
  table["buffer"] = MakeBuffer;
  table["warm"] = Warm;
  table["fill"] = Fill;
  table["tensors"] = FillTensors;
  table["text"] = PutText;
}

}  // namespace cairnfs::bench
