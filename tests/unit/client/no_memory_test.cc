// Saves and loads that run out of memory: each allocation fails in turn, alone and with all that follow. The call ends
// with an error or does its work, and the next one is as if nothing had been.
#include <cstdlib>
#include <new>

#include "client/loader.h"
#include "save_world.h"

namespace {

std::atomic<int64_t> allocations_until_failure = INT64_MAX;
std::atomic<bool> all_that_follow = false;
std::atomic<bool> has_failed = false;

bool Fails() {
  const int64_t left = allocations_until_failure--;
  if (left > 0 || (left < 0 && !all_that_follow)) return false;
  has_failed = true;
  return true;
}

}  // namespace

// All other forms but those for large alignments, which nothing here uses, come to these two.
void* operator new(std::size_t bytes) {
  void* memory = Fails() ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace cairnfs::client {
namespace {

class NoMemoryTest : public SaveWorld {
 protected:
  NoMemoryTest() {
    cairnfs_saver_options options = {};
    options.writers = 2;
    options.ring_bytes = 2 * kBlock;
    saver_ = OpenSaver(options);
  }

  // Runs `call`, which returns a Status or throws, with each allocation failing in turn, and `check` after each.
  template <typename Call, typename Check>
  void FailEach(bool with_all_that_follow, Call call, Check check) {
    bool failed = true;
    for (int64_t n = 0; failed; n += with_all_that_follow ? 5 : 1) {
      ASSERT_LT(n, 100'000);
      all_that_follow = with_all_that_follow;
      has_failed = false;
      allocations_until_failure = n;
      const std::optional<ErrorCode> code = CodeOf(call);
      allocations_until_failure = INT64_MAX;
      failed = has_failed;
      EXPECT_TRUE(code == std::nullopt || (failed && code == ErrorCode::kExhausted)) << n;
      check(code == std::nullopt);
      if (HasFailure()) FAIL() << "allocation " << n;
      RecordProperty("allocations", std::to_string(n));
    }
  }
  template <typename Call>
  static std::optional<ErrorCode> CodeOf(Call call) {
    try {
      const Status status = call();
      return status.ok() ? std::nullopt : std::optional(status.error().code);
    } catch (const std::bad_alloc&) {
      return ErrorCode::kExhausted;  // the C ABI makes that of it
    }
  }

  void FailEachOfASave(bool with_all_that_follow) {
    std::vector<TestTensor> state{NewTensor("host", CAIRNFS_HOST, 100), NewTensor("device", 0, 200)};
    SaveRight(*saver_, state, Path("base"), nullptr);
    const int64_t handles = devices_.devices[0].handles;
    Request made;
    Build(state, 64, made);
    const std::string path = Path("new");
    const std::string base = Path("base");
    made.request.path = path.c_str();
    made.request.base = base.c_str();
    cairnfs_save_request nothing = made.request;
    nothing.segments = nullptr;
    FailEach(
        with_all_that_follow,
        [&]() -> Status {
          CAIRNFS_ASSIGN_OR_RETURN(auto outcome, saver_->Start(made.request));
          CAIRNFS_RETURN_IF_ERROR(outcome->Wait(-1));
          // Waits until the fingerprints are kept too, and begins nothing.
          (void)CodeOf([&]() -> Status { return saver_->Start(nothing).error(); });
          return {};
        },
        [&](bool is_saved) {
          EXPECT_TRUE(Read(Path("base")) == made.expected);
          EXPECT_EQ(Names(), is_saved ? (std::vector<std::string>{"base", "new"}) : std::vector<std::string>{"base"});
          EXPECT_TRUE(!is_saved || Read(path) == made.expected);
          std::filesystem::remove(path);
          SaveRight(*saver_, state, Path("base"), base.c_str());
          EXPECT_EQ(devices_.devices[0].handles, handles);
        });
  }

  std::unique_ptr<Saver> saver_;
};

TEST_F(NoMemoryTest, OneAllocationOfASaveFails) { FailEachOfASave(false); }
TEST_F(NoMemoryTest, AllFurtherAllocationsOfASaveFail) { FailEachOfASave(true); }

TEST_F(NoMemoryTest, AllocationsOfALoadFail) {
  std::vector<TestTensor> state{NewTensor("host", CAIRNFS_HOST, 100), NewTensor("device", 0, 2 * kBlock)};
  SaveRight(*saver_, state, Path("file"), nullptr, 1);
  cairnfs_loader_options options = {};
  options.readers = 2;
  options.ring_bytes = 2 * kBlock;
  auto loader = Loader::Open(options, devices_);
  ASSERT_TRUE(loader.ok());
  const uint64_t end = std::filesystem::file_size(Path("file"));
  const cairnfs_read reads[] = {{0, 100, state[0].data, CAIRNFS_HOST, 0, "host"},
                                {end - 2 * kBlock, 2 * kBlock, state[1].data, 0, 0, "device"}};
  const std::string path = Path("file");
  cairnfs_load_request request = {};
  request.path = path.c_str();
  request.reads = reads;
  request.read_count = 2;
  for (const bool with_all_that_follow : {false, true}) {
    FailEach(
        with_all_that_follow, [&] { return (*loader)->Load(request); }, [](bool) {});
  }
}

}  // namespace
}  // namespace cairnfs::client
