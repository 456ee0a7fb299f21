#include "admission/openssl.h"

#include <array>
#include <utility>

namespace cairnfs::admission {
namespace {

BioPtr ReaderOf(std::string_view text) { return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// A password is never asked for: there is nobody to type it.
int NoPassword(char* /*to*/, int /*size*/, int /*is_written*/, void* /*unused*/) { return -1; }

// Not the certificates in it. (The function's name is a macro, so Freer does not take it.)
struct FreeStack {
  void operator()(STACK_OF(X509) * stack) const { sk_X509_free(stack); }
};

}  // namespace

Error OpenSslError(std::string_view doing) {
  std::array<char, 256> text{};
  const unsigned long first = ERR_get_error();
  if (first != 0) ERR_error_string_n(first, text.data(), text.size());
  ERR_clear_error();
  return MakeError(ErrorCode::kIo, std::string(doing) + ": " + (first != 0 ? text.data() : "OpenSSL does not say why"));
}

std::vector<CertificatePtr> CertificatesOf(std::string_view pem) {
  std::vector<CertificatePtr> certificates;
  const BioPtr reader = ReaderOf(pem);
  while (CertificatePtr next{PEM_read_bio_X509(reader.get(), nullptr, NoPassword, nullptr)}) {
    certificates.push_back(std::move(next));
  }
  ERR_clear_error();  // at the end it says that there is none
  return certificates;
}

CertificatePtr CertificateOf(std::string_view pem) {
  auto certificates = CertificatesOf(pem);
  return certificates.empty() ? nullptr : std::move(certificates.front());
}

RequestPtr RequestOf(std::string_view pem) {
  const BioPtr reader = ReaderOf(pem);
  RequestPtr request(PEM_read_bio_X509_REQ(reader.get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  return request;
}

KeyPtr KeyOf(std::string_view pem) {
  const BioPtr reader = ReaderOf(pem);
  KeyPtr key(PEM_read_bio_PrivateKey(reader.get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  return key;
}

Status CheckChain(X509& authority, const std::vector<CertificatePtr>& chain, ChainTime time) {
  const std::unique_ptr<X509_STORE, Freer<X509_STORE_free>> roots(X509_STORE_new());
  const std::unique_ptr<X509_STORE_CTX, Freer<X509_STORE_CTX_free>> check(X509_STORE_CTX_new());
  const std::unique_ptr<STACK_OF(X509), FreeStack> between(sk_X509_new_null());
  if (roots == nullptr || check == nullptr || between == nullptr || X509_STORE_add_cert(roots.get(), &authority) != 1) {
    return OpenSslError("cannot check a certificate");
  }
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(between.get(), chain[i].get());
  if (X509_STORE_CTX_init(check.get(), roots.get(), chain[0].get(), between.get()) != 1) {
    return OpenSslError("cannot check a certificate");
  }
  if (time == ChainTime::kAny) X509_STORE_CTX_set_flags(check.get(), X509_V_FLAG_NO_CHECK_TIME);
  if (X509_verify_cert(check.get()) == 1) return {};
  const char* why = X509_verify_cert_error_string(X509_STORE_CTX_get_error(check.get()));
  ERR_clear_error();
  return MakeError(ErrorCode::kCorrupt, why);
}

}  // namespace cairnfs::admission
