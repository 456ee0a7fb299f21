#include "admission/tls_connection.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <csignal>
#include <utility>

#include "base/coding.h"

namespace cairnfs::admission {
namespace {

constexpr size_t kMessageLengthBytes = 4;

Result<SslContextPtr> ContextOf(const SSL_METHOD* method) {
  // OpenSSL sends by write(2): to an end that is gone it would end the process.
  signal(SIGPIPE, SIG_IGN);
  SslContextPtr context(SSL_CTX_new(method));
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1) {
    return OpenSslError("cannot set TLS up");
  }
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_mode(context.get(), SSL_MODE_AUTO_RETRY);
  return context;
}

Error Gone(std::string_view doing, std::string_view why) {
  return MakeError(ErrorCode::kUnavailable, std::string(doing) + ": " + std::string(why));
}

}  // namespace

Result<SslContextPtr> TlsConnection::ServerContext(const std::string& own, const std::string& authority) {
  CAIRNFS_ASSIGN_OR_RETURN(SslContextPtr context, ContextOf(TLS_server_method()));
  auto chain = CertificatesOf(own + authority);
  const KeyPtr key = KeyOf(own);
  bool good = !chain.empty() && key != nullptr && SSL_CTX_use_certificate(context.get(), chain[0].get()) == 1 &&
              SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1;
  for (size_t i = 1; good && i < chain.size(); ++i) good = SSL_CTX_add1_chain_cert(context.get(), chain[i].get()) == 1;
  if (!good) return OpenSslError("cannot use this node's certificate");
  return context;
}

Result<SslContextPtr> TlsConnection::ClientContext() {
  CAIRNFS_ASSIGN_OR_RETURN(SslContextPtr context, ContextOf(TLS_client_method()));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  return context;
}

Result<std::unique_ptr<TlsConnection>> TlsConnection::Shake(SslContextPtr context, int socket, Clock::time_point until,
                                                            int (*shake)(SSL*)) {
  auto made = std::unique_ptr<TlsConnection>(new TlsConnection(std::move(context), socket));
  made->ssl_.reset(SSL_new(made->context_.get()));
  if (made->ssl_ == nullptr || SSL_set_fd(made->ssl_.get(), socket) != 1) return OpenSslError("cannot set TLS up");
  CAIRNFS_RETURN_IF_ERROR(made->Repeat("TLS handshake", until, [&] { return shake(made->ssl_.get()); }));
  return made;
}

Result<std::unique_ptr<TlsConnection>> TlsConnection::Accept(SslContextPtr context, int socket,
                                                             Clock::time_point until) {
  return Shake(std::move(context), socket, until, SSL_accept);
}

Result<std::unique_ptr<TlsConnection>> TlsConnection::Connect(SslContextPtr context, int socket,
                                                              Clock::time_point until) {
  return Shake(std::move(context), socket, until, SSL_connect);
}

TlsConnection::~TlsConnection() {
  if (ssl_ != nullptr) SSL_shutdown(ssl_.get());
  ERR_clear_error();
  ssl_.reset();
  close(socket_);
}

// Until a step succeeds (1), waiting for the socket where it asks for that.
template <typename Step>
Status TlsConnection::Repeat(std::string_view doing, Clock::time_point until, const Step& step) {
  for (;;) {
    ERR_clear_error();
    const int result = step();
    if (result == 1) return {};
    const int error = SSL_get_error(ssl_.get(), result);
    if (error == SSL_ERROR_ZERO_RETURN || error == SSL_ERROR_SYSCALL) {
      return Gone(doing, "the other end closed the connection");
    }
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
      return Gone(doing, OpenSslError("TLS").message);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::Now());
    pollfd ready{socket_, static_cast<short>(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT), 0};
    if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(std::min<int64_t>(left.count(), INT32_MAX))) == 0) {
      return Gone(doing, "the other end took too long");
    }
  }
}

std::vector<CertificatePtr> TlsConnection::Chain() const {
  std::vector<CertificatePtr> chain;
  const STACK_OF(X509)* shown = SSL_get_peer_cert_chain(ssl_.get());
  for (int i = 0; i < sk_X509_num(shown); ++i) {
    X509* certificate = sk_X509_value(shown, i);
    X509_up_ref(certificate);
    chain.emplace_back(certificate);
  }
  return chain;
}

Status TlsConnection::ReadAll(char* to, size_t size, Clock::time_point until) {
  for (size_t done = 0; done < size;) {
    size_t part = 0;
    CAIRNFS_RETURN_IF_ERROR(
        Repeat("reading a message", until, [&] { return SSL_read_ex(ssl_.get(), to + done, size - done, &part); }));
    done += part;
  }
  return {};
}

Result<std::string> TlsConnection::Read(Clock::time_point until) {
  std::string length(kMessageLengthBytes, '\0');
  CAIRNFS_RETURN_IF_ERROR(ReadAll(length.data(), length.size(), until));
  const uint32_t size = Decoder(length).U32();
  if (size > kMessageBytesMax) return Gone("reading a message", "it is too large");
  std::string message(size, '\0');
  CAIRNFS_RETURN_IF_ERROR(ReadAll(message.data(), message.size(), until));
  return message;
}

Status TlsConnection::Write(std::string_view message, Clock::time_point until) {
  assert(message.size() <= kMessageBytesMax);
  const std::string framed = Encoder().U32(static_cast<uint32_t>(message.size())).Text(message).Take();
  size_t written = 0;  // all of it, since partial writes are off
  return Repeat("writing a message", until,
                [&] { return SSL_write_ex(ssl_.get(), framed.data(), framed.size(), &written); });
}

}  // namespace cairnfs::admission
