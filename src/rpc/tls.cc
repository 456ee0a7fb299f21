#include "rpc/tls.h"

#include <grpc/grpc_security_constants.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include "base/log.h"

namespace cairnfs::rpc {
namespace {

constexpr unsigned kLookAgainSeconds = 30;

// gRPC writes a line to stderr for each handshake that fails: a stranger could fill the disk with them.
void TakeGrpcLog() {
  static const bool is_taken = [] {
    gpr_set_log_function([](gpr_log_func_args* line) { spdlog::debug("gRPC: {}", line->message); });
    return true;
  }();
  static_cast<void>(is_taken);
}

}  // namespace

std::string CertificateName(std::string_view node_hex) {
  return std::string(node_hex).append(".").append(kAnyNodeName);
}

Tls Tls::Of(const TlsFiles& files) {
  TakeGrpcLog();
  Tls tls;
  tls.files_ = files;
  tls.provider_ = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.authority, kLookAgainSeconds);
  return tls;
}

std::shared_ptr<grpc::ServerCredentials> Tls::Server() const {
  if (!enabled()) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> Tls::Client(const std::string& server,
                                                      grpc::ChannelArguments& arguments) const {
  if (!enabled()) return grpc::InsecureChannelCredentials();
  if (!server.empty()) arguments.SetSslTargetNameOverride(server);
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_root_certs();
  if (!files_.certificate.empty()) options.watch_identity_key_cert_pairs();
  options.set_check_call_host(false);  // the name was checked when the connection was made
  return grpc::experimental::TlsCredentials(options);
}

std::optional<std::string> CertifiedNode(const grpc::AuthContext& connection) {
  if (!connection.IsPeerAuthenticated()) return std::nullopt;
  for (const grpc::string_ref& text : connection.FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME)) {
    std::string_view name(text.data(), text.size());
    if (!name.ends_with(kAnyNodeName)) continue;
    name.remove_suffix(kAnyNodeName.size());
    if (!name.empty() && name.back() == '.') return std::string(name.substr(0, name.size() - 1));
  }
  return std::nullopt;
}

}  // namespace cairnfs::rpc
