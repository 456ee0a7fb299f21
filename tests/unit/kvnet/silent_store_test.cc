// Calls to a store that does not answer end when this host stops, their context or their time does.

#include "../../support/held_time.h"
#include "base/context.h"
#include "support.h"

namespace cairnfs::kvnet {
namespace {

template <typename T>
ErrorCode CodeOf(const Result<T>& result) {
  if (!result.ok()) return result.error().code;
  ADD_FAILURE() << "succeeded";
  return ErrorCode::kIo;
}

// The calls of a store that is connected and silent.
class HangingCalls {
 public:
  HangingCalls(const Context& context, kv::SharedKvStore& store) {
    const auto add = [&](auto call) {
      threads_.emplace_back([context, &store, call] { EXPECT_EQ(call(context, store), ErrorCode::kUnavailable); });
    };
    add([](const Context& own, kv::SharedKvStore& to) { return CodeOf(to.Get(own, "a")); });
    add([](const Context& own, kv::SharedKvStore& to) { return CodeOf(to.Range(own, "a", "b", 0)); });
    add([](const Context& own, kv::SharedKvStore& to) { return CodeOf(to.Commit(own, Transaction().Put("b", "1"))); });
    add([](const Context& own, kv::SharedKvStore& to) { return CodeOf(to.GrantLease(own, std::chrono::minutes(1))); });
    add([](const Context& own, kv::SharedKvStore& to) { return CodeOf(to.KeepLeaseAlive(own, 1)); });
  }
  void AwaitEnd() { threads_.clear(); }

 private:
  std::vector<std::jthread> threads_;
};

// Each call may take longer than a test.
RemoteOptions WithoutHaste(const std::shared_ptr<kv::AnswerWatch>& answers = nullptr) {
  RemoteOptions options;
  options.retry.give_up_after = std::chrono::hours(10);
  options.retry.try_timeout = options.lease_timeout = options.lease_timeout_all = std::chrono::hours(5);
  options.retry.answers = answers;
  return options;
}

void ExpectNothingIsSent(const Context& context, kv::SharedKvStore& store) {
  const auto entry = store.Get(context, "a");
  ASSERT_EQ(CodeOf(entry), ErrorCode::kUnavailable);
  EXPECT_NE(entry.error().message.find("nobody waits"), std::string::npos) << entry.error().message;
}

// What waits for the store ends when this host is told to stop, and nothing is sent after that.
void ExpectStopEndsCalls(HeldTime& time, kv::SharedKvStore& store, kv::AnswerWatch& answers, CuttingProxy& proxy) {
  Must(store.Commit({}, Transaction().Put("a", "1")));
  proxy.SetSilent(true);
  HangingCalls calls({}, store);
  proxy.WaitUntilItKeepsBack();
  answers.EndAfterSilence(std::chrono::seconds(10));
  // What is kept back may be of no call yet, and the silence counts from the first.
  while (!answers.ended().stop_requested()) {
    time.Pass(std::chrono::seconds(11));
    std::this_thread::sleep_for(milliseconds(10));
  }
  calls.AwaitEnd();
  ExpectNothingIsSent({}, store);
}

TEST(Stop, CallsToASilentNodeEnd) {
  HeldTime time;
  Node node;
  CuttingProxy proxy(node.address(), kv::TestSeed());
  auto answers = std::make_shared<kv::AnswerWatch>();
  auto store = Must(MakeNodeStore(proxy.address(), WithoutHaste(answers)));
  ExpectStopEndsCalls(time, *store, *answers, proxy);
}

EtcdOptions OptionsOf(const CuttingProxy& proxy, const RemoteOptions& remote) {
  EtcdOptions options;
  options.endpoints = {proxy.address()};
  options.remote = remote;
  return options;
}

TEST(Stop, CallsToASilentEtcdEnd) {
  EtcdCluster etcd(1);
  etcd.WaitUntilReady();
  HeldTime time;
  CuttingProxy proxy(etcd.Address(0), kv::TestSeed());
  auto answers = std::make_shared<kv::AnswerWatch>();
  auto store = Must(EtcdStore::Create(OptionsOf(proxy, WithoutHaste(answers))));
  ExpectStopEndsCalls(time, *store, *answers, proxy);
}

TEST(Stop, AStoreThatAnswersIsUsedToTheEnd) {
  HeldTime time;
  Node node;
  auto answers = std::make_shared<kv::AnswerWatch>();
  auto store = Must(MakeNodeStore(node.address(), WithoutHaste(answers)));
  Must(store->Get({}, "a"));  // connects
  answers->EndAfterSilence(std::chrono::seconds(10));
  for (int i = 0; i < 10; ++i) {
    time.Pass(std::chrono::seconds(9));
    Must(store->Commit({}, Transaction().Put("a", std::to_string(i))));
  }
  EXPECT_FALSE(answers->ended().stop_requested());
}

// A caller that is killed: its calls end, and those of others do not.
void ExpectContextEndsCalls(kv::SharedKvStore& store, CuttingProxy& proxy) {
  Must(store.Commit({}, Transaction().Put("a", "1")));
  proxy.SetSilent(true);
  std::stop_source stop;
  const Context context(stop.get_token());
  HangingCalls calls(context, store);
  std::jthread other([&] { EXPECT_EQ(Must(store.Get({}, "a"))->value, "1"); });
  Transaction create = Transaction().IfAbsent("c").Put("c", "1");
  create.operation_id = "create";
  std::jthread committing([&] { EXPECT_EQ(CodeOf(store.Commit(context, create)), ErrorCode::kUnavailable); });
  proxy.WaitUntilItKeepsBack();
  stop.request_stop();
  calls.AwaitEnd();
  committing.join();
  ExpectNothingIsSent(context, store);
  proxy.SetSilent(false);
  other.join();
  // Whatever became of the commit, it runs once.
  const uint64_t revision = Must(store.Commit({}, create));
  EXPECT_EQ(Must(store.Get({}, "c"))->revision, revision);
}

TEST(StoppedContext, EndsCallsToASilentNode) {
  Node node;
  CuttingProxy proxy(node.address(), kv::TestSeed());
  auto store = Must(MakeNodeStore(proxy.address(), WithoutHaste()));
  ExpectContextEndsCalls(*store, proxy);
}

TEST(StoppedContext, EndsCallsToASilentEtcd) {
  EtcdCluster etcd(1);
  etcd.WaitUntilReady();
  CuttingProxy proxy(etcd.Address(0), kv::TestSeed());
  auto store = Must(EtcdStore::Create(OptionsOf(proxy, WithoutHaste())));
  ExpectContextEndsCalls(*store, proxy);
}

// It takes connections and never says a word, or nobody is there at all: so calls wait between their tries.
TEST(StoppedContext, EndsTriesToReachANode) {
  int port = 0;
  const int mute = Listen(port);
  std::stop_source stop;
  std::vector<std::unique_ptr<kv::SharedKvStore>> stores;
  std::vector<std::unique_ptr<HangingCalls>> calls;
  for (const std::string& address : {OwnAddress() + ":" + std::to_string(port), std::string("127.0.0.1:1")}) {
    RemoteOptions options = WithoutHaste();
    options.retry.wait_min = options.retry.wait_max = std::chrono::hours(1);
    options.lease_timeout = milliseconds(1);  // a lease is kept alive in one try
    stores.push_back(Must(MakeNodeStore(address, options)));
    calls.push_back(std::make_unique<HangingCalls>(Context(stop.get_token()), *stores.back()));
  }
  stop.request_stop();
  calls.clear();
  for (const auto& store : stores) ExpectNothingIsSent(Context(stop.get_token()), *store);
  close(mute);
}

TEST(Deadline, EndsCallsToASilentNode) {
  Node node;
  CuttingProxy proxy(node.address(), kv::TestSeed());
  auto store = Must(MakeNodeStore(proxy.address(), WithoutHaste()));
  Must(store->Commit({}, Transaction().Put("a", "1")));
  proxy.SetSilent(true);
  HangingCalls(Context().WithTimeout(milliseconds(200)), *store).AwaitEnd();
  proxy.SetSilent(false);
  EXPECT_EQ(Must(store->Get({}, "a"))->value, "1");
}

}  // namespace
}  // namespace cairnfs::kvnet
