// reissue ISSUER_FOLDER ISSUER_NODE FOLDER NODE HOURS_AGO: gives a node (hex) a new key and certificate, as if that had
// been made so long ago, for a year. The folders are DATA/tls of the node that signs and of the node itself.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "admission/credentials.h"
#include "base/clock.h"

namespace {

using cairnfs::Clock;
using cairnfs::Status;
using cairnfs::Timestamp;
using cairnfs::admission::Credentials;

Status Reissue(const std::string& issuer_folder, const std::string& issuer, const std::string& folder,
               const std::string& node, int64_t hours_ago) {
  const Timestamp then{Clock::WallTime().seconds - hours_ago * 3600, 0};
  CAIRNFS_ASSIGN_OR_RETURN(const auto signer, Credentials::Open(issuer_folder, issuer, Clock::WallTime()));
  CAIRNFS_ASSIGN_OR_RETURN(const std::string key, cairnfs::admission::MakeKey());
  CAIRNFS_ASSIGN_OR_RETURN(const std::string request, cairnfs::admission::MakeRequest(key));
  CAIRNFS_ASSIGN_OR_RETURN(const std::string chain, signer->Issue(request, node, then));
  return Credentials::Write(folder, signer->authority(), key, chain, node, then);
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 6) {
    std::fprintf(stderr, "usage: reissue ISSUER_FOLDER ISSUER_NODE FOLDER NODE HOURS_AGO\n");
    return 2;
  }
  const Status done =
      Reissue(arguments[1], arguments[2], arguments[3], arguments[4], std::strtoll(arguments[5], nullptr, 10));
  if (!done.ok()) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done.ok() ? 0 : 1;
}
