// The conformance suites over the stores that are reached over a network.
#include "../kv/conformance_suite.h"
#include "../kv/shared_suite.h"
#include "support.h"

namespace cairnfs::kv {
namespace {

using kvnet::EtcdCluster;
using kvnet::EtcdOptions;
using kvnet::EtcdStore;
using kvnet::MakeNodeStore;
using kvnet::Node;

class NodeSubject final : public SharedSubject {
 public:
  NodeSubject() {
    is_alone = false;
    syncs_each_commit = true;
    Open();
  }
  SharedKvStore& shared() override { return handle_; }
  void Reopen() override {
    store_.reset();
    node_.Stop();
    node_.Start();
    Open();
  }
  bool OverflowHistory() override {
    for (size_t bytes = 0; bytes <= Node::kHistoryBytes; bytes += 10'000) {
      Must(store_->Commit({}, Transaction().Put("overflow", std::string(10'000, 'x'))));
    }
    return true;
  }

 private:
  void Open() {
    store_ = Must(MakeNodeStore(node_.address(), {}));
    handle_.Set(store_.get());
  }
  Node node_;
  std::unique_ptr<SharedKvStore> store_;
  SharedHandle handle_;
};

// One for all tests; each has a prefix of its own.
EtcdCluster& Etcd() {
  static std::unique_ptr<EtcdCluster> cluster;
  struct Ending final : testing::Environment {
    void TearDown() override { cluster.reset(); }
  };
  if (cluster == nullptr) {
    testing::AddGlobalTestEnvironment(new Ending);
    cluster = std::make_unique<EtcdCluster>(1);
    cluster->WaitUntilReady();
  }
  return *cluster;
}

class EtcdSubject final : public SharedSubject {
 public:
  EtcdSubject() {
    static int count = 0;
    is_alone = false;
    syncs_each_commit = true;
    lease_min = std::chrono::seconds(2);
    options_.endpoints = Etcd().Addresses();
    options_.prefix = "/test" + std::to_string(++count) + "/";
    EtcdSubject::Reopen();
  }
  SharedKvStore& shared() override { return handle_; }
  void Reopen() override {
    store_ = Must(EtcdStore::Create(options_));
    handle_.Set(store_.get());
  }
  bool OverflowHistory() override {
    Must(store_->Commit({}, Transaction().Put("overflow", "")));
    MustSucceed(store_->CompactHistory({}, 0));
    return true;
  }

 private:
  EtcdOptions options_;
  std::unique_ptr<EtcdStore> store_;
  SharedHandle handle_;
};

template <typename SubjectType>
ConformanceSetup Plain(const char* name) {
  return {name, [] { return std::make_unique<SubjectType>(); }};
}
template <typename SubjectType>
SharedSetup Shared(const char* name) {
  return {name, [] { return std::make_unique<SubjectType>(); }};
}

const auto kPlain = testing::Values(Plain<NodeSubject>("Node"), Plain<EtcdSubject>("Etcd"));
INSTANTIATE_TEST_SUITE_P(Remote, KvConformance, kPlain, SetupNameOf);
INSTANTIATE_TEST_SUITE_P(Remote, KvConcurrency, kPlain, SetupNameOf);
INSTANTIATE_TEST_SUITE_P(Remote, SharedConformance,
                         testing::Values(Shared<NodeSubject>("Node"), Shared<EtcdSubject>("Etcd")), SharedSetupNameOf);

}  // namespace
}  // namespace cairnfs::kv
