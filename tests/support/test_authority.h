// An authority of a cluster, and credentials that it, or nobody, gave: for tests of who may speak.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "admission/certificates.h"
#include "admission/credentials.h"
#include "base/clock.h"
#include "rpc/tls.h"

namespace cairnfs {

template <typename T>
T MustHave(Result<T> result) {
  if (!result.ok()) ADD_FAILURE() << result.error().message;
  return *std::move(result);
}

class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "cairnfs-tls-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class TestAuthority {
 public:
  TestAuthority() : authority_(MustHave(admission::MakeAuthority("f00d", Clock::WallTime()))) {}

  const admission::KeyAndCertificate& authority() const { return authority_; }
  // A folder with the credentials of a node (hex), made so long ago for a year.
  std::string FolderOf(const std::string& node, std::chrono::hours ago = {}) {
    Timestamp then = Clock::WallTime();
    then.seconds -= std::chrono::seconds(ago).count();
    const std::string key = MustHave(admission::MakeKey());
    const std::string chain = MustHave(admission::Issue(authority_, MustHave(admission::MakeRequest(key)), node, then));
    const std::string folder = folder_.path() + "/" + std::to_string(++count_);
    const Status written = admission::Credentials::Write(folder, authority_.certificate, key, chain, node, then);
    EXPECT_TRUE(written.ok()) << written.error().message;
    return folder;
  }
  rpc::Tls TlsOf(const std::string& node, std::chrono::hours ago = {}) {
    const std::string folder = FolderOf(node, ago);
    return rpc::Tls::Of({folder + "/authority.pem", folder + "/node.pem", folder + "/node.pem"});
  }
  // Of a client that believes this authority and has no certificate.
  rpc::Tls TlsOfNobody() { return rpc::Tls::Of({FolderOf("00") + "/authority.pem", {}, {}}); }
  // Of a client that believes this authority and has a certificate of another one.
  rpc::Tls TlsOfForeigner(TestAuthority& other, const std::string& node) {
    const std::string foreign = other.FolderOf(node) + "/node.pem";
    return rpc::Tls::Of({FolderOf(node) + "/authority.pem", foreign, foreign});
  }

 private:
  const admission::KeyAndCertificate authority_;
  const TestFolder folder_;
  int count_ = 0;
};

}  // namespace cairnfs
