// Passthrough on the real kernel, as root: a server of one file, spoken in the kernel's own protocol.
#include "fuse/backing_ids.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fuse/device.h"
#include "fuse/negotiation.h"
#include "fuse/reply.h"
#include "io/backing_fs.h"

namespace cairnfs::fuse {
namespace {

constexpr uint64_t kFileNode = 2;

// Serves "file", whose opens are answered with a backing id or, without one, as ordinary ones without any bytes.
class OneFileServer {
 public:
  OneFileServer(Device& device, Wishes wishes, uint64_t size)
      : device_(device), wishes_(wishes), size_(size), thread_([this] { Run(); }) {}
  ~OneFileServer() {
    EXPECT_TRUE(device_.Unmount(Unmounting::kLazily).ok());
    thread_.join();
  }
  std::atomic<fs::BackingId> backing{0};
  std::atomic<int> reads{0};
  std::atomic<uint64_t> agreed{0};

 private:
  void Run() {
    std::vector<std::byte> message(kMiB + 64 * kKiB);
    for (;;) {
      const ssize_t size = read(device_.fd(), message.data(), message.size());
      if (size < 0 && (errno == EINTR || errno == ENOENT)) continue;
      if (size < static_cast<ssize_t>(sizeof(fuse_in_header))) return;  // ENODEV: unmounted
      fuse_in_header header;
      std::memcpy(&header, message.data(), sizeof header);
      Answer(header, {message.data() + sizeof header, static_cast<size_t>(size) - sizeof header});
    }
  }
  void Answer(const fuse_in_header& header, ByteSpan body) {
    switch (header.opcode) {
      case FUSE_INIT: return Reply(header, InitReply(body));
      case FUSE_GETATTR: return Reply(header, AttrReply(header.nodeid));
      case FUSE_LOOKUP: return Reply(header, EntryReply());
      case FUSE_OPEN: return Reply(header, OpenOut(1, backing));
      case FUSE_READ: reads++; return Send(header, 0, {});
      case FUSE_FLUSH:
      case FUSE_RELEASE: return Send(header, 0, {});
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
      case FUSE_INTERRUPT: return;
      default: return Send(header, -ENOSYS, {});
    }
  }
  fuse_init_out InitReply(ByteSpan body) {
    const auto offer = DecodeInitRequest(body);
    fuse_init_out out{};
    out.major = FUSE_KERNEL_VERSION;
    out.minor = FUSE_KERNEL_MINOR_VERSION;
    out.time_gran = 1;
    PatchInitReply(*offer, out, wishes_);
    agreed = AgreedFlags(*offer, wishes_);
    return out;
  }
  fuse_attr AttrOf(uint64_t node) const {
    fuse_attr attr{};
    attr.ino = node;
    attr.mode = node == kFileNode ? S_IFREG | 0666 : S_IFDIR | 0755;
    attr.size = node == kFileNode ? size_ : 0;
    attr.nlink = 1;
    return attr;
  }
  fuse_attr_out AttrReply(uint64_t node) const {
    fuse_attr_out out{};
    out.attr = AttrOf(node);
    return out;
  }
  fuse_entry_out EntryReply() const {
    fuse_entry_out out{};
    out.nodeid = kFileNode;
    out.attr = AttrOf(kFileNode);
    return out;
  }
  template <typename Body>
  void Reply(const fuse_in_header& header, const Body& body) {
    Send(header, 0, {reinterpret_cast<const std::byte*>(&body), sizeof body});
  }
  void Send(const fuse_in_header& header, int error, ByteSpan body) {
    std::vector<std::byte> out(sizeof(fuse_out_header) + body.size());
    const fuse_out_header head{static_cast<uint32_t>(out.size()), error, header.unique};
    std::memcpy(out.data(), &head, sizeof head);
    std::copy(body.begin(), body.end(), out.begin() + sizeof head);
    EXPECT_EQ(write(device_.fd(), out.data(), out.size()), static_cast<ssize_t>(out.size())) << strerror(errno);
  }

  Device& device_;
  const Wishes wishes_;
  const uint64_t size_;
  std::thread thread_;
};

class BackingIdsTest : public testing::Test {
 protected:
  static constexpr size_t kSize = 3 * kMiB + 5;

  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "passthrough takes CAP_SYS_ADMIN";
    auto memory = io::BackingFs::Open({.size_bytes_max = 16 * kMiB});
    if (!memory.ok() && memory.error().code != ErrorCode::kIo) GTEST_SKIP() << memory.error().message;
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    memory_ = *std::move(memory);
    std::string pattern = (std::filesystem::temp_directory_path() / "cairnfs-passthrough-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    mount_point_ = pattern;
    bytes_.resize(kSize);
    for (size_t i = 0; i < kSize; i++) bytes_[i] = static_cast<char>(i * 2654435761U >> 13);
    file_ = *memory_->MakeFile();
    ASSERT_TRUE(file_->Write(0, AsBytes(bytes_)).ok());
  }
  void TearDown() override {
    server_.reset();
    device_.reset();
    if (!mount_point_.empty()) std::filesystem::remove(mount_point_);
  }
  // False: this kernel does not offer what is wished for.
  bool Mount(Wishes wishes = {.passthrough = true}) {
    MountOptions options;
    options.mount_point = mount_point_;
    auto device = Device::Mount(options);
    EXPECT_TRUE(device.ok()) << device.error().message;
    if (!device.ok()) return false;
    device_ = *std::move(device);
    server_ = std::make_unique<OneFileServer>(*device_, wishes, kSize);
    struct stat info {};
    EXPECT_EQ(stat(mount_point_.c_str(), &info), 0);  // INIT is over
    return !wishes.passthrough || (server_->agreed & kFusePassthrough) != 0;
  }
  int Open(int flags) const { return open((mount_point_ + "/file").c_str(), flags | O_CLOEXEC); }

  std::unique_ptr<io::BackingFs> memory_;
  std::unique_ptr<io::BackingFile> file_;
  std::string mount_point_, bytes_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<OneFileServer> server_;
};

TEST_F(BackingIdsTest, TheKernelReadsAndMapsTheRegisteredFile) {
  if (!Mount()) GTEST_SKIP() << "this kernel offers no passthrough";
  BackingIds ids(*device_, [](uint64_t) {});
  const auto id = ids.Register(file_->fd());
  ASSERT_TRUE(id.ok()) << id.error().message;
  EXPECT_FALSE(*file_->IsUsed());  // registering is no use of it
  server_->backing = *id;
  const int fd = Open(O_RDONLY);
  ASSERT_GE(fd, 0) << strerror(errno);
  std::string text(kSize + 100, '\0');
  EXPECT_EQ(pread(fd, text.data(), text.size(), 0), static_cast<ssize_t>(kSize));
  text.resize(kSize);
  EXPECT_TRUE(text == bytes_);
  void* mapped = mmap(nullptr, kSize, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_EQ(std::memcmp(mapped, bytes_.data(), kSize), 0);
  EXPECT_EQ(server_->reads, 0);

  close(fd);
  EXPECT_TRUE(*file_->IsUsed());  // by the mapping
  ids.Unregister(*id);
  ASSERT_TRUE(file_->Write(1, AsBytes("seen")).ok());
  EXPECT_EQ(std::memcmp(static_cast<char*>(mapped) + 1, "seen", 4), 0);
  munmap(mapped, kSize);
  EXPECT_FALSE(*file_->IsUsed());
}

TEST_F(BackingIdsTest, TheKernelRefusesAnOpenForWritingThatNamesIt) {
  if (!Mount()) GTEST_SKIP() << "this kernel offers no passthrough";
  BackingIds ids(*device_, [](uint64_t) {});
  const auto id = ids.Register(file_->fd());
  ASSERT_TRUE(id.ok()) << id.error().message;
  server_->backing = *id;
  for (const int flags : {O_RDWR, O_WRONLY}) {
    EXPECT_EQ(Open(flags), -1);
    EXPECT_EQ(errno, EIO);
  }
  ids.Unregister(*id);
}

TEST_F(BackingIdsTest, SaysWhatIsWrong) {
  ASSERT_TRUE(Mount({}));  // not agreed
  BackingIds ids(*device_, [](uint64_t) {});
  const auto refused = ids.Register(file_->fd());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kPermission) << refused.error().message;
  const auto bad = ids.Register(-1);
  ASSERT_FALSE(bad.ok());
  ids.Unregister(12345);  // is in the log, no more
}

}  // namespace
}  // namespace cairnfs::fuse
