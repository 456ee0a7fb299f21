// X.509 certificates (RFC 5280) of a cluster's nodes, and the authority that gives them. All texts are PEM, all keys
// ECDSA on P-256. OpenSSL makes and checks them.
//
// A cluster has one authority of its own. It signs the nodes' certificates itself, or, where its key is kept offline,
// the certificate of an issuer that signs them. Any thread may call these functions.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::admission {

inline constexpr std::chrono::hours kNodeLife{24 * 365};
// Clocks of two hosts may differ by so much: a certificate is valid from that long before it is made.
inline constexpr std::chrono::hours kClockMargin{1};

struct KeyAndCertificate {
  std::string key, certificate;
};

// A new authority for the filesystem (its uuid, in hex), valid for 30 years. kIo: OpenSSL fails, for all of these.
Result<KeyAndCertificate> MakeAuthority(std::string_view filesystem, Timestamp now);
// An issuer in the authority's name, valid as long as the authority is.
Result<KeyAndCertificate> MakeIssuer(const KeyAndCertificate& authority, Timestamp now);

Result<std::string> MakeKey();
// Asks that the key's public half be certified (RFC 2986). Signed by the key, which proves that the asker has it.
Result<std::string> MakeRequest(const std::string& key);
// The certificate of `node` (hex) for the key of a request, for `life` and no longer than the issuer's. Nothing else of
// the request counts. kInvalidArgument: it is none, or its key is no ECDSA one on P-256, or did not sign it.
Result<std::string> Issue(const KeyAndCertificate& issuer, std::string_view request, std::string_view node,
                          Timestamp now, std::chrono::seconds life = kNodeLife);

// Shows that its sender is a node that has a certificate: those that lead to the authority, and a signature by the key
// of the first one. Both empty: it shows nothing.
struct NodeProof {
  std::string chain, signature;
};
// `own`: the node's key and certificates. `text`: what the other end cannot have seen before. kCorrupt.
Result<NodeProof> ProveNode(std::string_view own, std::string_view text);
// Whether the proof is one of that node (hex), by a certificate of the authority; one that has ended counts, too.
bool IsProofOf(const std::string& authority, std::string_view node, std::string_view text, const NodeProof& proof);

// Checks what signs certificates: that its key fits, and that it may sign for the authority. kCorrupt.
Status CheckIssuer(const std::string& authority, const KeyAndCertificate& issuer);

struct Validity {
  Timestamp begin, end;
};
Result<Validity> ValidityOf(std::string_view certificate);  // kCorrupt: it is none
// Checks what a node is to prove itself with: `chain` is its certificate and those that lead to the authority.
// kCorrupt: a text is none, the key is another one, or the chain does not lead to the authority. kPermission: it names
// another node, or has ended at `now`. kUnavailable: it has not begun. The message says what would be right.
Result<Validity> Check(const std::string& authority, const std::string& chain, const std::string& key,
                       std::string_view node, Timestamp now);

// The first certificate of a text that holds other blocks, too, alone. kCorrupt: there is none.
Result<std::string> CertificateTextOf(std::string_view text);

// SHA-256 of the certificate's DER form, by which people and tokens tell an authority. kCorrupt: it is none.
using Fingerprint = std::array<uint8_t, 32>;
Result<Fingerprint> FingerprintOf(std::string_view certificate);

}  // namespace cairnfs::admission
