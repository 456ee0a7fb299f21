// JoinPort: the port at which hosts join that have no certificate yet. It speaks TLS 1.3 with messages of its own, and
// no gRPC. A host shows a token first; without a good one it learns nothing but this node's certificate. Connections,
// the time of each and the size of messages are bounded, each address having a share.
//
// The host's side is Join() below.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "admission/credentials.h"
#include "admission/join_messages.h"
#include "admission/token.h"
#include "base/result.h"

namespace cairnfs::admission {

// Whether a host that joins has shown that it is the node that it says it is: it has a key of that node's.
enum class Identity { kClaimed, kProven };

class JoinPort {
 public:
  // Called on the port's threads; may block for some seconds.
  struct Cluster {
    std::function<Result<JoinWelcome>()> welcome;
    // Notes durably that the node may be in the cluster. May be asked again for the same node.
    std::function<Status(const JoinRequest&, Identity)> admit;
  };
  // Listens on IP:PORT; port 0: one that is free. `credentials`, which sign, and `tokens` outlive it. kUnavailable.
  static Result<std::unique_ptr<JoinPort>> Start(const std::string& listen, const Credentials& credentials,
                                                 Tokens& tokens, Cluster cluster);
  virtual ~JoinPort() = default;  // ends the connections
  virtual const std::string& address() const = 0;
  virtual uint64_t refused_total() const = 0;
};

// Whether what listens at `address` (HOST:PORT) ends a TLS handshake, in some seconds. Trusts nobody, and sends
// nothing.
bool SpeaksTls(const std::string& address);

// What a host that joins says for itself, once it knows what it joins. Called once.
using Introduce = std::function<Result<JoinRequest>(const JoinWelcome&)>;
// Joins by the host that listens at `address` (HOST:PORT). kUnavailable: it cannot be reached, or does not answer in
// time. kPermission: the token is of another cluster. Else what the other host, or `introduce`, fails with.
Result<JoinGrant> Join(const std::string& address, const Token& token, const Introduce& introduce);

}  // namespace cairnfs::admission
