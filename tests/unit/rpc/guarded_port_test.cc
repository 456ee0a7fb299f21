// Who is let in at the ports of a node: asked as the stranger.
#include "rpc/guarded_port.h"

#include <arpa/inet.h>
#include <grpcpp/generic/async_generic_service.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "../../support/raw_call.h"
#include "rpc/status.h"

namespace cairnfs::rpc {
namespace {

constexpr uid_t kNobody = 65534;

class Answered final : public grpc::ServerGenericBidiReactor {
 public:
  Answered() { Finish(ToGrpc(MakeError(ErrorCode::kBusy, "served"))); }
  void OnDone() override { delete this; }
};

class Service final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override { return new Answered; }
};

struct Server {
  explicit Server(const std::string& listen, IsTrusted is_trusted = {}) {
    grpc::ServerBuilder builder;
    port = std::make_unique<GuardedPort>(builder, PortGuard{{}, std::move(is_trusted), {}});
    builder.RegisterCallbackGenericService(&service);
    server = builder.BuildAndStart();
    opened = server ? port->Open(listen) : MakeError(ErrorCode::kIo, "no server");
  }
  ~Server() {
    port.reset();
    if (server) server->Shutdown();
  }
  Service service;
  std::unique_ptr<GuardedPort> port;
  std::unique_ptr<grpc::Server> server;
  Status opened;
};

Error Call(const std::string& address) {
  return FromGrpc(RawCall({address, "", "/cairnfs.Any/Thing", true}, Tls(), ""));
}

// What a process of another user is answered. It is made before gRPC has threads here, which a fork would not take
// along.
class Stranger {
 public:
  explicit Stranger(uid_t uid) {
    if (pipe(ask_) != 0 || pipe(answer_) != 0) abort();
    child_ = fork();
    if (child_ != 0) return;
    close(ask_[1]);
    if (setgid(uid) != 0 || setuid(uid) != 0) _exit(1);
    char address[100] = "";
    while (read(ask_[0], address, sizeof address) > 0) {
      std::string text = Call(address).message;
      text.resize(1000);
      if (write(answer_[1], text.data(), text.size()) != 1000) break;
    }
    _exit(0);
  }
  ~Stranger() {
    close(ask_[1]);
    waitpid(child_, nullptr, 0);
    for (int fd : {ask_[0], answer_[0], answer_[1]}) close(fd);
  }
  std::string Ask(std::string address) {
    address.resize(100);
    std::string text(1000, '\0');
    if (write(ask_[1], address.data(), address.size()) != 100) return "it is gone";
    if (read(answer_[0], text.data(), text.size()) != 1000) return "it is gone";
    return text.c_str();
  }

 private:
  int ask_[2], answer_[2];
  pid_t child_ = 0;
};

// First: it forks.
TEST(GuardedPort, OnItsHostServesItsUserAndRootAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  Stranger stranger(kNobody), root(0);
  const IsTrusted all = [](const IpBytes&) { return true; };
  for (const std::string address : {"127.0.0.1", "0.0.0.0", "[::]", "[::1]"}) {
    Server server(address + ":0", all);
    ASSERT_TRUE(server.opened.ok()) << server.opened.error().message;
    const std::string port = server.port->address().substr(server.port->address().rfind(':'));
    const bool is_ipv4 = address != "[::1]";
    for (const std::string& to : {is_ipv4 ? "127.0.0.1" + port : "[::1]" + port,
                                  address == "0.0.0.0" ? "127.0.0.7" + port : server.port->address()}) {
      EXPECT_EQ(root.Ask(to), "served") << to;
      const std::string told = stranger.Ask(to);
      EXPECT_NE(told.find("on its own host processes of root alone"), std::string::npos) << to << ": " << told;
    }
    EXPECT_EQ(Call(is_ipv4 ? "127.0.0.1" + port : "[::1]" + port).message, "served");
  }
}

// Both ends of a connection over the loopback interface.
struct Pair {
  explicit Pair(uid_t uid) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    auto* address = reinterpret_cast<sockaddr*>(&name);
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (uid != 0 && fchown(client, uid, uid) != 0) abort();
    if (bind(listener, address, size) != 0 || listen(listener, 1) != 0 || getsockname(listener, address, &size) != 0 ||
        connect(client, address, size) != 0) {
      abort();
    }
    server = accept(listener, nullptr, nullptr);
    close(listener);
  }
  ~Pair() {
    if (client >= 0) close(client);
    close(server);
  }
  int client = -1, server = -1;
};

TEST(LocalPeer, ASocketOfNobodyIsNotRoots) {
  Pair pair(0);
  const auto uid = UidOfLocalPeer(pair.server);
  ASSERT_TRUE(uid.ok()) << uid.error().message;
  EXPECT_EQ(*uid, geteuid());
  // What was sent before stays to be read; the kernel knows no user of it any more, and says 0.
  close(std::exchange(pair.client, -1));
  const auto gone = UidOfLocalPeer(pair.server);
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().code, ErrorCode::kPermission) << gone.error().message;
}

TEST(LocalPeer, IsWhoMadeTheSocket) {
  if (geteuid() != 0) GTEST_SKIP() << "gives a socket away";
  Pair pair(kNobody);
  const auto uid = UidOfLocalPeer(pair.server);
  ASSERT_TRUE(uid.ok()) << uid.error().message;
  EXPECT_EQ(*uid, kNobody);
}

TEST(GuardedPort, APortThatIsTakenIsAnError) {
  Server one("127.0.0.1:0");
  ASSERT_TRUE(one.opened.ok()) << one.opened.error().message;
  EXPECT_EQ(Server(one.port->address()).opened.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(Server("192.0.2.1:0").opened.error().code, ErrorCode::kUnavailable) << "for documentation, and no host's";
}

}  // namespace
}  // namespace cairnfs::rpc
