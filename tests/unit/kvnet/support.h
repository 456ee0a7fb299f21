// What the tests of kvnet share: etcd clusters of their own, and a network that cuts connections.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "../../support/eventually.h"
#include "../../support/own_address.h"
#include "../kv/support.h"
#include "base/context.h"
#include "base/thread_annotations.h"
#include "kvnet/etcd_store.h"
#include "kvnet/kv_service.h"
#include "kvnet/node_store.h"

namespace cairnfs::kvnet {

using kv::Must;
using kv::MustSucceed;
using kv::Transaction;
using std::chrono::milliseconds;

// Of this process's own address.
inline sockaddr_in SocketAddress(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, OwnAddress().c_str(), &address.sin_addr);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// A socket that listens on a free port of this process's own address.
inline int Listen(int& port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = SocketAddress(0);
  socklen_t size = sizeof address;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd, 64) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    ADD_FAILURE() << "cannot listen";
    abort();
  }
  port = ntohs(address.sin_port);
  return fd;
}

// The members of an etcd cluster, each a process that ends with this one.
class EtcdCluster {
 public:
  // `quota_bytes`: of each member's database; 0: etcd's default.
  explicit EtcdCluster(size_t members, uint64_t quota_bytes = 0) : members_(members), quota_bytes_(quota_bytes) {
    std::vector<int> held;  // all at once, so that no port is given twice
    for (Member& member : members_) {
      held.push_back(Listen(member.client_port));
      held.push_back(Listen(member.peer_port));
    }
    for (int fd : held) close(fd);
    for (size_t i = 0; i < members; ++i) Start(i);
  }
  ~EtcdCluster() {
    for (size_t i = 0; i < members_.size(); ++i) Kill(i);
  }
  EtcdCluster(const EtcdCluster&) = delete;

  void Start(size_t index) {
    const std::string name = "m" + std::to_string(index), data = directory_.path() + "/" + name;
    std::string cluster;
    for (size_t i = 0; i < members_.size(); ++i) {
      cluster += (i == 0 ? "m" : ",m") + std::to_string(i) + "=" + Url(members_[i].peer_port);
    }
    const std::string client = Url(members_[index].client_port), peer = Url(members_[index].peer_port);
    const std::string log = data + ".log", quota = std::to_string(quota_bytes_);
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(out, 1);
      dup2(out, 2);
      execlp("etcd", "etcd", "--name", name.c_str(), "--data-dir", data.c_str(), "--listen-client-urls", client.c_str(),
             "--advertise-client-urls", client.c_str(), "--listen-peer-urls", peer.c_str(),
             "--initial-advertise-peer-urls", peer.c_str(), "--initial-cluster", cluster.c_str(),
             "--heartbeat-interval", "50", "--election-timeout", "500", "--snapshot-count", "100000",
             "--quota-backend-bytes", quota.c_str(), nullptr);
      _exit(127);
    }
    members_[index].pid = child;
  }
  void Pause(size_t index) {
    kill(members_[index].pid, SIGSTOP);
    waitpid(members_[index].pid, nullptr, WUNTRACED);  // a thread of it may be answering yet
  }
  void Resume(size_t index) { kill(members_[index].pid, SIGCONT); }
  void Kill(size_t index) {
    if (members_[index].pid == 0) return;
    kill(members_[index].pid, SIGKILL);
    waitpid(members_[index].pid, nullptr, 0);
    members_[index].pid = 0;
  }
  std::string Address(size_t index) const { return OwnAddress() + ":" + std::to_string(members_[index].client_port); }
  std::vector<std::string> Addresses() const {
    std::vector<std::string> addresses;
    for (size_t i = 0; i < members_.size(); ++i) addresses.push_back(Address(i));
    return addresses;
  }
  size_t size() const { return members_.size(); }

  // Wait until it answers; the member alone, with the others behind it.
  void WaitUntilReady() const { WaitUntilAnswers(Addresses()); }
  void WaitUntilReady(size_t index) const { WaitUntilAnswers({Address(index)}); }

 private:
  struct Member {
    int client_port = 0, peer_port = 0;
    pid_t pid = 0;
  };
  static void WaitUntilAnswers(std::vector<std::string> endpoints) {
    EtcdOptions options;
    options.endpoints = std::move(endpoints);
    auto store = Must(EtcdStore::Create(options));
    Must(store->Get({}, "is it there"));
  }
  static std::string Url(int port) { return "http://" + OwnAddress() + ":" + std::to_string(port); }
  // etcd syncs each commit: in memory that costs nothing.
  struct Directory {
    Directory() {
      std::string name = access("/dev/shm", W_OK) == 0
                             ? "/dev/shm/kvnet-test-XXXXXX"
                             : (std::filesystem::temp_directory_path() / "kvnet-test-XXXXXX").string();
      text = mkdtemp(name.data());
    }
    ~Directory() {
      std::error_code ignored;
      std::filesystem::remove_all(text, ignored);
    }
    const std::string& path() const { return text; }
    std::string text;
  };
  Directory directory_;
  std::vector<Member> members_;
  const uint64_t quota_bytes_;
};

// Passes bytes between clients and a server at this process's own address, and now and then cuts a connection when the
// server has answered and the client has not heard it yet.
class CuttingProxy {
 public:
  CuttingProxy(const std::string& server_address, uint64_t seed)
      : server_port_(std::stoi(server_address.substr(server_address.rfind(':') + 1))), random_(seed) {
    listener_ = Listen(port_);
    accepter_ = std::jthread([this](const std::stop_token& stop) { Accept(stop); });
  }
  ~CuttingProxy() {
    accepter_.request_stop();
    accepter_.join();
    close(listener_);
  }
  std::string address() const { return OwnAddress() + ":" + std::to_string(port_); }

  std::atomic<int> cut_per_mille{0};  // of the pieces that the server sends
  std::atomic<int> cuts{0};

  // From now on what either end sends is kept back, until it is silent no longer.
  void SetSilent(bool is_silent) {
    MutexLock lock(mutex_);
    is_silent_ = is_silent;
    keeps_back_ = false;
    changed_.NotifyAll();
  }
  // Waits until a client has sent something that is kept back.
  void WaitUntilItKeepsBack() {
    MutexLock lock(mutex_);
    while (!keeps_back_) changed_.Wait(mutex_);
  }

 private:
  void Accept(const std::stop_token& stop) {
    std::vector<std::jthread> connections;
    while (!stop.stop_requested()) {
      pollfd ready{listener_, POLLIN, 0};
      if (poll(&ready, 1, 20) <= 0) continue;
      const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) continue;
      connections.emplace_back([this, client](const std::stop_token& end) { Serve(client, end); });
    }
  }
  void Serve(int client, const std::stop_token& stop) {
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = SocketAddress(server_port_);
    const int yes = 1;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      while (!stop.stop_requested() && Pass(Context(stop), client, server)) {
      }
    }
    close(client);
    close(server);
  }
  bool Pass(const Context& context, int client, int server) {
    pollfd ends[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
    if (poll(ends, IsSilent() ? 1 : 2, 20) < 0) return false;
    if (IsSilent()) {
      if (ends[0].revents != 0) KeepBack(context);
      return true;
    }
    char buffer[1 << 16];
    for (int i = 0; i < 2; ++i) {
      if ((ends[i].revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
      const ssize_t size = read(ends[i].fd, buffer, sizeof buffer);
      if (size <= 0) return false;
      if (i == 1 && Draw() < cut_per_mille) {
        ++cuts;
        return false;
      }
      for (ssize_t sent = 0; sent < size;) {
        const ssize_t part = send(ends[1 - i].fd, buffer + sent, static_cast<size_t>(size - sent), MSG_NOSIGNAL);
        if (part <= 0) return false;
        sent += part;
      }
    }
    return true;
  }
  bool IsSilent() {
    MutexLock lock(mutex_);
    return is_silent_;
  }
  // Until it is silent no longer, or the context is stopped.
  void KeepBack(const Context& context) {
    MutexLock lock(mutex_);
    keeps_back_ = true;
    changed_.NotifyAll();
    context.Wait(mutex_, changed_, [this]() REQUIRES_LOCK(mutex_) { return !is_silent_; });
  }
  int Draw() {
    MutexLock lock(mutex_);
    return std::uniform_int_distribution<int>(0, 999)(random_);
  }

  const int server_port_;
  int port_ = 0;
  int listener_ = -1;
  Mutex mutex_;
  CondVar changed_;
  bool is_silent_ GUARDED_BY(mutex_) = false;
  bool keeps_back_ GUARDED_BY(mutex_) = false;
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  std::jthread accepter_;
};

// A node that hosts the keys, and can be started again on its address.
class Node {
 public:
  // `path` empty: in memory.
  explicit Node(std::string path = "", kv::HostedStoreOptions options = {})
      : path_(std::move(path)), options_(options) {
    options_.history_bytes_max = kHistoryBytes;
    if (path_.empty()) engine_ = kv::OpenMemoryEngine();
    Start();
  }
  void Stop() {
    server_.reset();
    store_.reset();
    if (!path_.empty()) engine_.reset();
  }
  void Start() {
    if (engine_ == nullptr) engine_ = kv::MustOpenRocks(path_);
    store_ = Must(kv::HostedStore::Open(*engine_, options_));
    if (before_serving) before_serving(*store_);
    server_ = Must(KvServer::Start(*store_, address_));
    address_ = server_->address();
  }
  const std::string& address() const { return address_; }
  kv::HostedStore& store() { return *store_; }
  static constexpr size_t kHistoryBytes = 1 << 20;
  std::function<void(kv::HostedStore& store)> before_serving;  // what others did before a client could come

 private:
  const std::string path_;
  kv::HostedStoreOptions options_;
  std::string address_ = OwnAddress() + ":0";
  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::HostedStore> store_;
  std::unique_ptr<KvServer> server_;
};

}  // namespace cairnfs::kvnet
