// OpenSSL's objects with owners, and its errors as ours. Private to this room.
#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cairnfs::admission {

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using BioPtr = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using CertificatePtr = std::unique_ptr<X509, Freer<X509_free>>;
using DigestPtr = std::unique_ptr<EVP_MD_CTX, Freer<EVP_MD_CTX_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using RequestPtr = std::unique_ptr<X509_REQ, Freer<X509_REQ_free>>;
using SslContextPtr = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;
using SslPtr = std::unique_ptr<SSL, Freer<SSL_free>>;

// kIo: the first error that OpenSSL noted in this thread, whose notes this empties.
Error OpenSslError(std::string_view doing);

// The certificates of a PEM text, in their order; other blocks are passed over. Empty: there is none.
std::vector<CertificatePtr> CertificatesOf(std::string_view pem);
CertificatePtr CertificateOf(std::string_view pem);  // the first one; null: there is none
KeyPtr KeyOf(std::string_view pem);                  // null: there is none
RequestPtr RequestOf(std::string_view pem);          // the same

// Whether the certificates lead from the first to the authority, now or whenever they are valid. kCorrupt: they do not.
enum class ChainTime { kNow, kAny };
Status CheckChain(X509& authority, const std::vector<CertificatePtr>& chain, ChainTime time);

}  // namespace cairnfs::admission
