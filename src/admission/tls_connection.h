// TLS 1.3 over one socket, with messages of a bounded size and a bounded time: what joining needs, and no more. Private
// to this room.
//
// A message on the wire is its length (u32, little-endian) and its bytes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "admission/openssl.h"
#include "base/clock.h"
#include "base/result.h"

namespace cairnfs::admission {

class TlsConnection {
 public:
  static constexpr size_t kMessageBytesMax = 64 * 1024;

  // A side that shows `own`: its key, and the certificates from its own on. Null: OpenSSL fails.
  static Result<SslContextPtr> ServerContext(const std::string& own, const std::string& authority);
  // Takes any certificate: the caller judges the chain. Shows none.
  static Result<SslContextPtr> ClientContext();

  // Take over the socket, which does not block, and shake hands. kUnavailable: it took past `until`, the other end went
  // away, or what it says is no TLS 1.3; for the functions below as well.
  static Result<std::unique_ptr<TlsConnection>> Accept(SslContextPtr context, int socket, Clock::time_point until);
  static Result<std::unique_ptr<TlsConnection>> Connect(SslContextPtr context, int socket, Clock::time_point until);
  ~TlsConnection();
  TlsConnection(const TlsConnection&) = delete;

  std::vector<CertificatePtr> Chain() const;  // of the other end, its own first
  Result<std::string> Read(Clock::time_point until);
  // REQUIRES: at most kMessageBytesMax.
  Status Write(std::string_view message, Clock::time_point until);

 private:
  TlsConnection(SslContextPtr context, int socket) : context_(std::move(context)), socket_(socket) {}
  static Result<std::unique_ptr<TlsConnection>> Shake(SslContextPtr context, int socket, Clock::time_point until,
                                                      int (*shake)(SSL*));
  template <typename Step>
  Status Repeat(std::string_view doing, Clock::time_point until, const Step& step);
  Status ReadAll(char* to, size_t size, Clock::time_point until);

  const SslContextPtr context_;
  const int socket_;
  SslPtr ssl_;
};

}  // namespace cairnfs::admission
