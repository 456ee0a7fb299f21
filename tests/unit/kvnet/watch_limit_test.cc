// A node that has as many watches as it serves.
#include <grpcpp/grpcpp.h>
#include <spdlog/sinks/base_sink.h>

#include <mutex>

#include "../../support/eventually.h"
#include "base/clock.h"
#include "base/log.h"
#include "support.h"

namespace cairnfs::kvnet {
namespace {

class LogLines final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::vector<std::string> Seen() {
    std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    lines_.emplace_back(message.payload.data(), message.payload.size());
  }
  void flush_() override {}
  std::vector<std::string> lines_;
};

class LogCapture {
 public:
  LogCapture() { spdlog::set_default_logger(std::make_shared<spdlog::logger>("capture", lines_)); }
  ~LogCapture() { spdlog::set_default_logger(before_); }
  std::vector<std::string> Lines() const { return lines_->Seen(); }

 private:
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  const std::shared_ptr<LogLines> lines_ = std::make_shared<LogLines>();
};

TEST(WatchLimit, ARefusedWatchIsToldOnceAndServedWhenThereIsRoom) {
  LogCapture log;
  auto engine = kv::OpenMemoryEngine();
  auto hosted = Must(kv::HostedStore::Open(*engine));
  KvService service(*hosted, {}, /*watches_max=*/1);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service.service());
  auto server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  {
    auto store = Must(MakeNodeStore("127.0.0.1:" + std::to_string(port), {}));
    std::atomic<int> seen_first{0}, seen_second{0}, lost_first{0}, lost_second{0};
    auto count = [](std::atomic<int>& seen, std::atomic<int>& lost) {
      kv::WatchCallbacks callbacks;
      callbacks.changed = [&seen](const std::vector<kv::KvEvent>&, uint64_t) { ++seen; };
      callbacks.lost = [&lost](uint64_t) { ++lost; };
      return callbacks;
    };
    auto first = Must(store->Watch({}, "a", "b", 0, count(seen_first, lost_first)));
    Must(store->Commit({}, Transaction().Put("a1", "")));
    ASSERT_TRUE(Eventually([&] { return seen_first > 0; }));
    auto second = Must(store->Watch({}, "a", "b", 0, count(seen_second, lost_second)));
    ASSERT_TRUE(Eventually([&] { return !log.Lines().empty(); }));
    EXPECT_NE(log.Lines()[0].find("has 1 watches, and serves no more"), std::string::npos) << log.Lines()[0];
    EXPECT_NE(log.Lines()[0].find("keep the metadata of so many hosts in an etcd"), std::string::npos);
    EXPECT_TRUE(Eventually([&] { return lost_second > 2; })) << "who is told nothing is to look by itself";
    EXPECT_EQ(log.Lines().size(), 1u);
    EXPECT_EQ(lost_first, 0);
    Must(store->Commit({}, Transaction().Put("a2", "")));
    EXPECT_EQ(seen_second, 0);
    first.reset();
    EXPECT_TRUE(Eventually([&] { return seen_second > 0; }));
  }
  server->Shutdown(Clock::LibraryDeadline(Clock::duration::zero()));
  server->Wait();
}

}  // namespace
}  // namespace cairnfs::kvnet
