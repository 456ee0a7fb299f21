// TLS between nodes, and to an etcd: what a process proves itself with, and whom it believes. Both ends show a
// certificate, and nothing that comes over a connection is parsed as a call before the other end's was found good.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace grpc {
class AuthContext;
class ChannelArguments;
class ChannelCredentials;
class ServerCredentials;
namespace experimental {
class CertificateProviderInterface;
}
}  // namespace grpc

namespace cairnfs::rpc {

// Names in the certificates of nodes. Each has the one of its node, and the one that all of a cluster share.
inline constexpr std::string_view kAnyNodeName = "node.cairnfs";
std::string CertificateName(std::string_view node_hex);

// Of PEM files. `certificate` and `key` may be one file; behind the certificate come those that lead to the authority.
struct TlsFiles {
  std::string authority, certificate, key;  // no `certificate`: a client that shows none
};

class Tls {
 public:
  Tls() = default;  // no TLS: connections are plain
  // Reads the files, and again within a minute after they changed: later connections use what they hold then. REQUIRES
  // (unchecked): they can be read, and hold what they are to hold.
  static Tls Of(const TlsFiles& files);

  bool enabled() const { return provider_ != nullptr; }
  const TlsFiles& files() const { return files_; }
  // Of a server to whom callers must show a certificate of the authority.
  std::shared_ptr<grpc::ServerCredentials> Server() const;
  // Of a client. The server's certificate must be of the authority and name `server`; empty: the host of the address.
  std::shared_ptr<grpc::ChannelCredentials> Client(const std::string& server, grpc::ChannelArguments& arguments) const;

 private:
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;
  TlsFiles files_;
};

// The node (hex) that the certificate at the other end of a connection names; nullopt: it names none.
std::optional<std::string> CertifiedNode(const grpc::AuthContext& connection);

}  // namespace cairnfs::rpc
