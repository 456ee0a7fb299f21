// A GET, and servers that answer it wrongly or not at all.
#include "kvnet/http_get.h"

#include "../../support/test_authority.h"
#include "support.h"

namespace cairnfs::kvnet {
namespace {

// Answers one request with a text, whatever it asks for; an empty text: never.
class CannedServer {
 public:
  explicit CannedServer(std::string answer) : answer_(std::move(answer)), listener_(Listen(port_)) {
    thread_ = std::jthread([this] { Serve(); });
  }
  ~CannedServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  std::string address() const { return OwnAddress() + ":" + std::to_string(port_); }
  // Once a request has come.
  std::string Request() {
    MutexLock lock(mutex_);
    while (!has_request_) came_.Wait(mutex_);
    return request_;
  }

 private:
  void Serve() {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    char piece[1000];
    const ssize_t count = read(client, piece, sizeof piece);
    {
      MutexLock lock(mutex_);
      request_.assign(piece, static_cast<size_t>(std::max<ssize_t>(count, 0)));
      has_request_ = true;
      came_.NotifyAll();
    }
    for (size_t sent = 0; sent < answer_.size();) {
      const ssize_t part = send(client, answer_.data() + sent, answer_.size() - sent, MSG_NOSIGNAL);
      if (part <= 0) break;
      sent += static_cast<size_t>(part);
    }
    if (!answer_.empty()) shutdown(client, SHUT_WR);
    while (read(client, piece, sizeof piece) > 0) {
    }
    close(client);
  }

  const std::string answer_;
  int port_ = 0;
  const int listener_;
  Mutex mutex_;
  CondVar came_;
  bool has_request_ GUARDED_BY(mutex_) = false;
  std::string request_ GUARDED_BY(mutex_);
  std::jthread thread_;
};

std::string WhyNot(const Result<std::string>& body) {
  EXPECT_FALSE(body.ok()) << *body;
  if (body.ok()) return "";
  EXPECT_EQ(body.error().code, ErrorCode::kUnavailable);
  return body.error().message;
}

std::string WhyNotThe(const std::string& answer) {
  const CannedServer server(answer);
  return WhyNot(HttpGet({}, server.address(), "/metrics", {}));
}

TEST(HttpGet, ReturnsTheBody) {
  const std::string body(300'000, 'b');
  CannedServer server("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" + body);
  EXPECT_EQ(Must(HttpGet({}, server.address(), "/metrics", {})), body);
  const std::string request = server.Request();
  EXPECT_TRUE(request.starts_with("GET /metrics HTTP/1.1\r\n")) << request;
}

TEST(HttpGet, SaysWhatIsWrongWithAnAnswer) {
  EXPECT_EQ(WhyNotThe("HTTP/1.1 404 Not Found\r\n\r\n"), "the answer is HTTP 404");
  EXPECT_EQ(WhyNotThe("HTTP/1.1 204 No Content\r\n\r\n"), "the answer is HTTP 204");
  EXPECT_NE(WhyNotThe("no HTTP at all"), "");
  EXPECT_NE(WhyNotThe("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\ncut"), "");
  EXPECT_EQ(WhyNotThe("HTTP/1.1 200 OK\r\n\r\n" + std::string(kHttpBytesMax + 1, 'x')), "the answer is too long");
}

TEST(HttpGet, FollowsNoRedirectAndNoProxyOfTheEnvironment) {
  const CannedServer elsewhere("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nelsewhere");
  setenv("http_proxy", ("http://" + elsewhere.address()).c_str(), 1);
  EXPECT_EQ(WhyNotThe("HTTP/1.1 302 Found\r\nLocation: http://" + elsewhere.address() + "/\r\n\r\n"),
            "the answer is HTTP 302");
  unsetenv("http_proxy");
}

TEST(HttpGet, EndsWithItsContext) {
  CannedServer silent("");
  EXPECT_EQ(WhyNot(HttpGet(Context().WithTimeout(milliseconds(50)), silent.address(), "/metrics", {})),
            "no answer in time");
  CannedServer stopped("");
  std::stop_source stop;
  const std::jthread stopper([&] {
    stopped.Request();
    stop.request_stop();
  });
  WhyNot(HttpGet(Context(stop.get_token()), stopped.address(), "/metrics", {}));
  WhyNot(HttpGet({}, OwnAddress() + ":1", "/metrics", {}));  // nobody listens
}

// A process of openssl, which ends with this one.
pid_t StartOpenssl(std::vector<std::string> arguments) {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int nowhere = open("/dev/null", O_RDWR);
  for (int fd : {0, 1, 2}) dup2(nowhere, fd);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execvp("openssl", pointers.data());
  _exit(127);
}

// Has a certificate of that name, and asks its clients for one of the same authority: itself.
class TlsServer {
 public:
  explicit TlsServer(const std::string& name) {
    const rpc::TlsFiles own = files();
    const pid_t maker = StartOpenssl({"openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                                      "-nodes", "-subj", "/CN=etcd", "-addext", "subjectAltName=" + name, "-keyout",
                                      own.key, "-out", own.certificate});
    int status = 0;
    EXPECT_EQ(waitpid(maker, &status, 0), maker);
    EXPECT_EQ(status, 0);
    close(Listen(port_));
    pid_ = StartOpenssl({"openssl", "s_server", "-accept", address(), "-cert", own.certificate, "-key", own.key,
                         "-CAfile", own.authority, "-Verify", "1", "-verify_return_error", "-www"});
  }
  ~TlsServer() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  rpc::TlsFiles files() const {
    const std::string certificate = folder_.path() + "/server.pem";
    return {certificate, certificate, folder_.path() + "/server.key"};
  }
  std::string address() const { return OwnAddress() + ":" + std::to_string(port_); }
  Result<std::string> Get(const rpc::TlsFiles& with) const { return HttpGet({}, address(), "/", rpc::Tls::Of(with)); }

 private:
  const TestFolder folder_;
  int port_ = 0;
  pid_t pid_ = 0;
};

TEST(HttpGet, ProvesItselfAndBelievesOnlyItsAuthority) {
  const TlsServer server("IP:" + OwnAddress());
  const rpc::TlsFiles good = server.files();
  ASSERT_TRUE(Eventually([&] { return server.Get(good).ok(); }));
  EXPECT_NE(Must(server.Get(good)).find("s_server"), std::string::npos);

  WhyNot(server.Get({good.authority, {}, {}}));  // no certificate of its own
  TestAuthority other;
  const std::string foreign = other.FolderOf("aa");
  WhyNot(server.Get({good.authority, foreign + "/node.pem", foreign + "/node.pem"}));
  EXPECT_NE(WhyNot(server.Get({foreign + "/authority.pem", good.certificate, good.key})).find("certificate"),
            std::string::npos);
  WhyNot(HttpGet({}, server.address(), "/", {}));  // without TLS
  EXPECT_TRUE(server.Get(good).ok());

  const CannedServer plain("HTTP/1.1 200 OK\r\n\r\nbody");
  WhyNot(HttpGet({}, plain.address(), "/", rpc::Tls::Of(good)));
}

TEST(HttpGet, BelievesNoServerOfAnotherName) {
  const TlsServer server("DNS:etcd.example");
  EXPECT_TRUE(Eventually([&] {
    const auto body = server.Get(server.files());
    return !body.ok() && body.error().message.find("target host name") != std::string::npos;
  }));
}

}  // namespace
}  // namespace cairnfs::kvnet
