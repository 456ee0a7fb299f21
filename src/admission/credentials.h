// Credentials: what a node of a cluster with TLS proves itself with, as it lies in its data directory.
//
//   DATA/tls/authority.pem  the certificate of the cluster's authority
//   DATA/tls/node.pem       the node's key, its certificate, and the issuer's where that is not the authority
//   DATA/tls/issuer.pem     key and certificate of who signs: on the host that lets others join, alone
//
// The folder has mode 0700 and the files have 0600. Each is replaced in one step, so a key and its certificate always
// fit.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "admission/certificates.h"
#include "base/result.h"
#include "base/thread_annotations.h"
#include "rpc/tls.h"

namespace cairnfs::admission {

class Credentials {
 public:
  static std::string FolderOf(const std::string& data_path) { return data_path + "/tls"; }

  // For the first node of a cluster: makes the authority and the node's credentials in `folder`. The authority's key
  // stays there as the issuer's, or, with `authority_out`, is written to that file, which must not exist, and an issuer
  // in its name stays. kAlreadyExists, kIo and what files fail with.
  static Status Found(const std::string& folder, std::string_view filesystem, std::string_view node,
                      const std::string& authority_out, Timestamp now);
  // Makes a new issuer in the `folder` of a node, by the authority's key in a file that Found wrote: the node signs
  // from its next start on. What other issuers have signed stays good. kPermission: that is another authority;
  // kCorrupt, and what files fail with.
  static Status AddIssuer(const std::string& folder, const std::string& authority_file, Timestamp now);
  // For a node that joins. `key` and `chain`: as Check() takes them, which is done first.
  static Status Write(const std::string& folder, const std::string& authority, const std::string& key,
                      const std::string& chain, std::string_view node, Timestamp now);
  // What a node that joins anew can show of those that it has in `folder`: empty where they are none.
  static NodeProof Prove(const std::string& folder, std::string_view text);
  // Reads and checks those of `node` (hex). A node that signs, and whose own certificate has ended, gives itself a new
  // one. kNotFound: there are none. kPermission: others may read or write a file,
  // or see Check(), as for kCorrupt.
  static Result<std::unique_ptr<Credentials>> Open(const std::string& folder, std::string_view node, Timestamp now);
  Credentials(const Credentials&) = delete;

  // Checks the files as they are now, as Open does.
  Status CheckFiles(Timestamp now) const;
  const std::string& authority() const { return authority_; }
  std::string own() const;  // what node.pem holds
  rpc::Tls tls() const;     // of the files: follows a renewal
  Validity validity() const;

  // Whether this node signs certificates, and the signing of one: the chain for `node`. kNotSupported: it does not.
  // Any thread.
  bool Issues() const { return !issuer_.key.empty(); }
  Result<std::string> Issue(std::string_view request, std::string_view node, Timestamp now) const;

  // Two thirds of the certificate's life are over.
  bool IsRenewalDue(Timestamp now) const;
  // A new key is made, `ask` gets a certificate for it, by a request and with a chain as the answer, and both are put
  // in place of the old ones. One thread at a time. What `ask` fails with, and what Check() finds.
  template <typename Ask>
  Status Renew(const Ask& ask, Timestamp now) {
    CAIRNFS_ASSIGN_OR_RETURN(const std::string key, MakeKey());
    CAIRNFS_ASSIGN_OR_RETURN(const std::string request, MakeRequest(key));
    CAIRNFS_ASSIGN_OR_RETURN(const std::string chain, ask(request));
    return Replace(key, chain, now);
  }

  // Of a node that signs: what Renew() is to ask.
  std::function<Result<std::string>(const std::string& request)> Signing(Timestamp now) const;

 private:
  Credentials(std::string folder, std::string_view node) : folder_(std::move(folder)), node_(node) {}
  Status Replace(const std::string& key, const std::string& chain, Timestamp now);

  const std::string folder_, node_;
  std::string authority_;
  KeyAndCertificate issuer_;  // empty where this node is none
  mutable Mutex mutex_;
  std::string own_ GUARDED_BY(mutex_);
  Validity validity_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::admission
