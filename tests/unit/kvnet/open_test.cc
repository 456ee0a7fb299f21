// Which texts name a store, and what a server and a client do with what they did not expect.
#include "kvnet/open.h"

#include "support.h"

namespace cairnfs::kvnet {
namespace {

RemoteOptions Impatient() {
  RemoteOptions options;
  options.retry.give_up_after = milliseconds(100);
  options.retry.try_timeout = milliseconds(100);
  options.lease_timeout = milliseconds(100);
  return options;
}

TEST(OpenSharedStore, TakesTheTwoForms) {
  for (const char* text : {"node:127.0.0.1:7000", "node:host.example:1", "node:[::1]:7000", "etcd://a:2379",
                           "etcd://a:2379,b:2379,[fd00::1]:2379", "etcd://a:2379/some/prefix", "etcd://a:2379/"}) {
    EXPECT_TRUE(OpenSharedStore(text, Impatient()).ok()) << text;
  }
}

TEST(OpenSharedStore, SaysWhatIsWrong) {
  const std::pair<std::string, std::string> wrong[] = {
      {"", "node:HOST:PORT"},
      {"rocksdb", "etcd://HOST:PORT"},
      {"etcd:a:2379", "etcd://HOST:PORT"},
      {"node:", "has no port"},
      {"node:host", "has no port"},
      {"node:host:", "port"},
      {"node::7000", "has no host"},
      {"node:host:0", "from 1 to 65535"},
      {"node:host:65536", "from 1 to 65535"},
      {"node:host:70x", "'70x'"},
      {"node:::1:7000", "brackets"},
      {"etcd://", "lacks an endpoint"},
      {"etcd://a:2379,", "has no port"},
      {"etcd://a:2379,,b:2379", "has no port"},
      {"etcd://http://a:2379", "port"},
      {"etcd://a:2379/" + std::string(300, 'x'), "prefix"},
  };
  for (const auto& [text, words] : wrong) {
    Result<std::unique_ptr<kv::SharedKvStore>> store = OpenSharedStore(text, Impatient());
    ASSERT_FALSE(store.ok()) << text;
    EXPECT_EQ(store.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(store.error().message.find(words), std::string::npos) << text << ": " << store.error().message;
    EXPECT_NE(store.error().message.find("'" + text + "'"), std::string::npos) << store.error().message;
  }
}

TEST(OpenSharedStore, NodeThatIsThereAnswers) {
  Node node;
  auto store = Must(OpenSharedStore("node:" + node.address()));
  Must(store->Commit({}, Transaction().Put("a", "1")));
  EXPECT_EQ(Must(node.store().Get({}, "a"))->value, "1");
}

// Nobody listens there, and whoever does is not the server that is meant.
TEST(OpenSharedStore, UnreachableStoreGivesUp) {
  int port = 0;
  const int mute = Listen(port);  // takes connections and never says a word
  const std::string address = OwnAddress() + ":" + std::to_string(port);
  Node node;
  const std::string texts[] = {"node:127.0.0.1:1", "etcd://127.0.0.1:1,127.0.0.1:2", "node:" + address,
                               "etcd://" + address};
  std::vector<std::jthread> threads;
  for (const std::string& text : texts) {
    threads.emplace_back([&text] {
      auto store = Must(OpenSharedStore(text, Impatient()));
      const kv::KvSpan span{"a", "b", 0};
      std::vector<Error> errors;
      errors.push_back(store->Get({}, "a").error());
      errors.push_back(store->Read({}, {&span, 1}).error());
      errors.push_back(store->Commit({}, Transaction().Put("a", "1")).error());
      errors.push_back(store->Commit({}, Transaction().IfExists("a")).error());
      errors.push_back(store->GrantLease({}, std::chrono::seconds(5)).error());
      errors.push_back(store->KeepLeaseAlive({}, 1).error());
      errors.push_back(store->RevokeLease({}, 1).error());
      for (const Error& error : errors) EXPECT_EQ(error.code, ErrorCode::kUnavailable) << text << error.message;
      const auto watch = Must(store->Watch({}, "", "", 1, {[](auto, auto) {}, [](auto) {}}));
    });
  }
  threads.clear();
  close(mute);
}

TEST(KvServer, SaysWhyItCannotListen) {
  const auto engine = kv::OpenMemoryEngine();
  auto store = Must(kv::HostedStore::Open(*engine));
  EXPECT_EQ(KvServer::Start(*store, "nonsense").error().code, ErrorCode::kInvalidArgument);
  auto first = Must(KvServer::Start(*store, "127.0.0.1:0"));
  Result<std::unique_ptr<KvServer>> second = KvServer::Start(*store, first->address());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
}

TEST(NodeStore, ErrorsOfTheNodeComeThrough) {
  Node node;
  auto store = Must(MakeNodeStore(node.address(), RemoteOptions()));
  EXPECT_EQ(store->GrantLease({}, milliseconds(0)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store->KeepLeaseAlive({}, 77).error().code, ErrorCode::kNotFound);
  Transaction leased;
  leased.writes.push_back(kv::KvWrite{"a", "", 77});
  EXPECT_EQ(store->Commit({}, leased).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairnfs::kvnet
