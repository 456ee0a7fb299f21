#include "admission/certificates.h"

#include <fmt/format.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <utility>
#include <vector>

#include "admission/openssl.h"
#include "base/hex.h"
#include "base/random_bytes.h"
#include "base/utc_text.h"
#include "rpc/tls.h"

namespace cairnfs::admission {
namespace {

constexpr std::chrono::hours kAuthorityLife{24 * 365 * 30};
constexpr int kSerialBytes = 16;
constexpr size_t kIssuerNameBytes = 4;
constexpr size_t kNodeDigitsMax = 32;
constexpr long kVersion3 = 2;  // of X.509, as it is written

Error NoPem(std::string_view what) {
  return MakeError(ErrorCode::kCorrupt, fmt::format("{} holds no PEM text that can be read", what));
}

KeyPtr NewKey() { return KeyPtr(EVP_EC_gen("P-256")); }

template <typename Write>
Result<std::string> PemText(const Write& write) {
  const BioPtr to(BIO_new(BIO_s_mem()));
  if (to == nullptr || write(to.get()) != 1) return OpenSslError("cannot write PEM");
  char* text = nullptr;
  const long size = BIO_get_mem_data(to.get(), &text);
  return std::string(text, static_cast<size_t>(size));
}

Result<std::string> PemOf(EVP_PKEY* key) {
  return PemText([&](BIO* to) { return PEM_write_bio_PrivateKey(to, key, nullptr, nullptr, 0, nullptr, nullptr); });
}
Result<std::string> PemOf(X509* certificate) {
  return PemText([&](BIO* to) { return PEM_write_bio_X509(to, certificate); });
}

bool SetSerial(X509* certificate) {
  std::array<unsigned char, kSerialBytes> bytes{};
  if (RAND_bytes(bytes.data(), kSerialBytes) != 1) return false;
  bytes[0] = static_cast<unsigned char>((bytes[0] & 0x7f) | 0x40);  // positive, and of full length
  std::unique_ptr<BIGNUM, Freer<BN_free>> number(BN_bin2bn(bytes.data(), kSerialBytes, nullptr));
  return number != nullptr && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool SetName(X509* certificate, const std::string& name) {
  X509_NAME* subject = X509_get_subject_name(certificate);
  return X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(name.c_str()),
                                    -1, -1, 0) == 1;
}

bool AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  std::unique_ptr<X509_EXTENSION, Freer<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

struct Extension {
  int kind;
  std::string value;
};
struct Wanted {
  std::string name;
  Timestamp now;
  std::chrono::seconds life;
  std::vector<Extension> extensions;
};

// Signed by `issuer`, or by itself where that is null. `signer`: the issuer's key.
Result<std::string> Certify(const Wanted& wanted, EVP_PKEY* subject, X509* issuer, EVP_PKEY* signer) {
  const CertificatePtr made(X509_new());
  X509* certificate = made.get();
  const time_t begin = wanted.now.seconds - std::chrono::seconds(kClockMargin).count();
  const time_t end = wanted.now.seconds + wanted.life.count();
  bool good = certificate != nullptr && X509_set_version(certificate, kVersion3) == 1 && SetSerial(certificate) &&
              SetName(certificate, wanted.name) && X509_set_pubkey(certificate, subject) == 1 &&
              ASN1_TIME_set(X509_getm_notBefore(certificate), begin) != nullptr &&
              ASN1_TIME_set(X509_getm_notAfter(certificate), end) != nullptr;
  X509* named = issuer == nullptr ? certificate : issuer;
  if (good && issuer != nullptr && ASN1_TIME_compare(X509_get0_notAfter(certificate), X509_get0_notAfter(issuer)) > 0) {
    good = X509_set1_notAfter(certificate, X509_get0_notAfter(issuer)) == 1;
  }
  good = good && X509_set_issuer_name(certificate, X509_get_subject_name(named)) == 1 &&
         AddExtension(certificate, named, NID_subject_key_identifier, "hash") &&
         AddExtension(certificate, named, NID_authority_key_identifier, "keyid:always");
  for (const Extension& extension : wanted.extensions) {
    good = good && AddExtension(certificate, named, extension.kind, extension.value);
  }
  if (!good || X509_sign(certificate, signer, EVP_sha256()) == 0) return OpenSslError("cannot make a certificate");
  return PemOf(certificate);
}

std::vector<Extension> OfAuthority(const std::string& constraint) {
  return {{NID_basic_constraints, "critical,CA:TRUE" + constraint}, {NID_key_usage, "critical,keyCertSign,cRLSign"}};
}

std::vector<Extension> OfNode(std::string_view node) {
  return {{NID_basic_constraints, "critical,CA:FALSE"},
          {NID_key_usage, "critical,digitalSignature"},
          {NID_ext_key_usage, "serverAuth,clientAuth"},
          {NID_subject_alt_name, fmt::format("DNS:{},DNS:{}", rpc::CertificateName(node), rpc::kAnyNodeName)}};
}

Timestamp TimeOf(const ASN1_TIME* time) {
  std::tm parts{};
  Timestamp found;
  if (ASN1_TIME_to_tm(time, &parts) == 1) found.seconds = timegm(&parts);
  return found;
}

Validity LifeOf(const X509* certificate) {
  return {TimeOf(X509_get0_notBefore(certificate)), TimeOf(X509_get0_notAfter(certificate))};
}

bool Names(X509* certificate, std::string_view node) {
  return X509_check_host(certificate, rpc::CertificateName(node).c_str(), 0, X509_CHECK_FLAG_NO_WILDCARDS, nullptr) ==
         1;
}

bool IsP256(const EVP_PKEY* key) {
  std::array<char, 64> group{};
  size_t size = 0;
  return EVP_PKEY_is_a(key, "EC") == 1 && EVP_PKEY_get_group_name(key, group.data(), group.size(), &size) == 1 &&
         std::string_view(group.data()) == SN_X9_62_prime256v1;
}

}  // namespace

Result<KeyAndCertificate> MakeAuthority(std::string_view filesystem, Timestamp now) {
  const KeyPtr key = NewKey();
  if (key == nullptr) return OpenSslError("cannot make a key");
  const Wanted wanted{fmt::format("CairnFS authority {}", filesystem), now, kAuthorityLife, OfAuthority("")};
  KeyAndCertificate made;
  CAIRNFS_ASSIGN_OR_RETURN(made.certificate, Certify(wanted, key.get(), nullptr, key.get()));
  CAIRNFS_ASSIGN_OR_RETURN(made.key, PemOf(key.get()));
  return made;
}

Result<KeyAndCertificate> MakeIssuer(const KeyAndCertificate& authority, Timestamp now) {
  const KeyPtr signer = KeyOf(authority.key), key = NewKey();
  const CertificatePtr root = CertificateOf(authority.certificate);
  if (signer == nullptr || root == nullptr) return NoPem("the authority");
  if (key == nullptr) return OpenSslError("cannot make a key");
  // A name of its own: what is signed in its own name does not count towards pathlen (RFC 5280, 4.2.1.9).
  const Wanted wanted{fmt::format("CairnFS issuer {}", ToHex(RandomBytes(kIssuerNameBytes))), now, kAuthorityLife,
                      OfAuthority(",pathlen:0")};
  KeyAndCertificate made;
  CAIRNFS_ASSIGN_OR_RETURN(made.certificate, Certify(wanted, key.get(), root.get(), signer.get()));
  CAIRNFS_ASSIGN_OR_RETURN(made.key, PemOf(key.get()));
  return made;
}

Result<std::string> MakeKey() {
  const KeyPtr key = NewKey();
  if (key == nullptr) return OpenSslError("cannot make a key");
  return PemOf(key.get());
}

Result<std::string> MakeRequest(const std::string& key_text) {
  const KeyPtr key = KeyOf(key_text);
  const RequestPtr request(X509_REQ_new());
  if (key == nullptr) return NoPem("the key");
  if (request == nullptr || X509_REQ_set_pubkey(request.get(), key.get()) != 1 ||
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) == 0) {
    return OpenSslError("cannot make a request for a certificate");
  }
  return PemText([&](BIO* to) { return PEM_write_bio_X509_REQ(to, request.get()); });
}

Result<std::string> Issue(const KeyAndCertificate& issuer, std::string_view request_text, std::string_view node,
                          Timestamp now, std::chrono::seconds life) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (node.empty() || node.size() > kNodeDigitsMax || node.find_first_not_of(kDigits) != std::string_view::npos) {
    return MakeError(ErrorCode::kInvalidArgument, "the id of the node is none: it has 32 hex digits, in lower case");
  }
  const RequestPtr request = RequestOf(request_text);
  EVP_PKEY* subject = request == nullptr ? nullptr : X509_REQ_get0_pubkey(request.get());
  if (subject == nullptr || !IsP256(subject) || X509_REQ_verify(request.get(), subject) != 1) {
    ERR_clear_error();
    return MakeError(ErrorCode::kInvalidArgument,
                     "the request for a certificate is none, or is not signed by an ECDSA key on P-256");
  }
  const KeyPtr signer = KeyOf(issuer.key);
  const CertificatePtr certificate = CertificateOf(issuer.certificate);
  if (signer == nullptr || certificate == nullptr) return NoPem("the issuer");
  const Wanted wanted{fmt::format("CairnFS node {}", node), now, life, OfNode(node)};
  return Certify(wanted, subject, certificate.get(), signer.get());
}

Result<Validity> Check(const std::string& authority_text, const std::string& chain_text, const std::string& key_text,
                       std::string_view node, Timestamp now) {
  const CertificatePtr authority = CertificateOf(authority_text);
  const std::vector<CertificatePtr> chain = CertificatesOf(chain_text);
  const KeyPtr key = KeyOf(key_text);
  if (authority == nullptr) return NoPem("the authority's certificate");
  if (chain.empty()) return NoPem("the node's certificate");
  if (key == nullptr) return NoPem("the node's key");
  X509* certificate = chain.front().get();
  if (X509_check_private_key(certificate, key.get()) != 1) {
    ERR_clear_error();
    return MakeError(ErrorCode::kCorrupt, "the node's key is not the one that its certificate is for");
  }
  if (Status checked = CheckChain(*authority, chain, ChainTime::kAny); !checked.ok()) {
    return checked.error().WithContext("the node's certificate is not of this cluster's authority");
  }
  if (!Names(certificate, node)) {
    return MakeError(ErrorCode::kPermission,
                     fmt::format("the certificate is of another node than {}, the one of this data directory", node));
  }
  const Validity valid = LifeOf(certificate);
  if (now < valid.begin) {
    return MakeError(
        ErrorCode::kUnavailable,
        fmt::format("by this host's clock it is {}, and the node's certificate begins at {}: set the clock",
                    UtcText(now), UtcText(valid.begin)));
  }
  if (now > valid.end) {
    return MakeError(
        ErrorCode::kPermission,
        fmt::format("by this host's clock it is {}, and the node's certificate ended at {}: set the clock if it is "
                    "wrong, or join again with a new token (cairnfs cluster token, cairnfs cluster join --force)",
                    UtcText(now), UtcText(valid.end)));
  }
  return valid;
}

Result<NodeProof> ProveNode(std::string_view own, std::string_view text) {
  const KeyPtr key = KeyOf(own);
  if (key == nullptr) return NoPem("the node's key");
  NodeProof proof;
  for (const CertificatePtr& certificate : CertificatesOf(own)) {
    CAIRNFS_ASSIGN_OR_RETURN(const std::string pem, PemOf(certificate.get()));
    proof.chain += pem;
  }
  const DigestPtr signing(EVP_MD_CTX_new());
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t size = 0;
  if (signing == nullptr || EVP_DigestSignInit(signing.get(), nullptr, EVP_sha256(), nullptr, key.get()) != 1 ||
      EVP_DigestSign(signing.get(), nullptr, &size, bytes, text.size()) != 1) {
    return OpenSslError("cannot sign with the node's key");
  }
  proof.signature.resize(size);
  auto* to = reinterpret_cast<unsigned char*>(proof.signature.data());
  if (EVP_DigestSign(signing.get(), to, &size, bytes, text.size()) != 1) return OpenSslError("cannot sign");
  proof.signature.resize(size);
  return proof;
}

bool IsProofOf(const std::string& authority_text, std::string_view node, std::string_view text,
               const NodeProof& proof) {
  const CertificatePtr authority = CertificateOf(authority_text);
  const std::vector<CertificatePtr> chain = CertificatesOf(proof.chain);
  if (authority == nullptr || chain.empty() || !CheckChain(*authority, chain, ChainTime::kAny).ok()) return false;
  if (!Names(chain.front().get(), node)) return false;
  const DigestPtr checking(EVP_MD_CTX_new());
  EVP_PKEY* key = X509_get0_pubkey(chain.front().get());
  const bool is_signed =
      checking != nullptr && key != nullptr &&
      EVP_DigestVerifyInit(checking.get(), nullptr, EVP_sha256(), nullptr, key) == 1 &&
      EVP_DigestVerify(checking.get(), reinterpret_cast<const unsigned char*>(proof.signature.data()),
                       proof.signature.size(), reinterpret_cast<const unsigned char*>(text.data()), text.size()) == 1;
  ERR_clear_error();
  return is_signed;
}

Result<Validity> ValidityOf(std::string_view text) {
  const CertificatePtr certificate = CertificateOf(text);
  if (certificate == nullptr) return NoPem("the certificate");
  return LifeOf(certificate.get());
}

Status CheckIssuer(const std::string& authority_text, const KeyAndCertificate& issuer) {
  const CertificatePtr authority = CertificateOf(authority_text);
  const std::vector<CertificatePtr> chain = CertificatesOf(issuer.certificate);
  const KeyPtr key = KeyOf(issuer.key);
  if (authority == nullptr || chain.empty() || key == nullptr) return NoPem("the issuer");
  const bool fits = X509_check_private_key(chain[0].get(), key.get()) == 1 && X509_check_ca(chain[0].get()) == 1;
  ERR_clear_error();
  if (!fits) return MakeError(ErrorCode::kCorrupt, "its key and certificate do not fit, or it may not sign");
  return CheckChain(*authority, chain, ChainTime::kAny);
}

Result<std::string> CertificateTextOf(std::string_view text) {
  const CertificatePtr certificate = CertificateOf(text);
  if (certificate == nullptr) return NoPem("the certificate");
  return PemOf(certificate.get());
}

Result<Fingerprint> FingerprintOf(std::string_view text) {
  const CertificatePtr certificate = CertificateOf(text);
  if (certificate == nullptr) return NoPem("the authority's certificate");
  Fingerprint print{};
  unsigned size = 0;
  if (X509_digest(certificate.get(), EVP_sha256(), print.data(), &size) != 1 || size != print.size()) {
    return OpenSslError("cannot take a certificate's fingerprint");
  }
  return print;
}

}  // namespace cairnfs::admission
