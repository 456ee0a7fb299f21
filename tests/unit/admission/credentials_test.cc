#include "admission/credentials.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "../../support/test_authority.h"

namespace cairnfs::admission {
namespace {

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class CredentialsTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Credentials>> OpenAt(int64_t days = 0) const {
    return Credentials::Open(folder_, "aa", {now_.seconds + days * 24 * 3600, 0});
  }
  void ExpectOpens() const {
    auto opened = OpenAt();
    EXPECT_TRUE(opened.ok()) << opened.error().message;
  }

  const Timestamp now_ = Clock::WallTime();
  const TestFolder outer_;
  const std::string folder_ = outer_.path() + "/tls";
};

TEST_F(CredentialsTest, TheFirstNodeSigns) {
  EXPECT_EQ(OpenAt().error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(Credentials::Found(folder_, "f00d", "aa", "", now_).ok());
  auto opened = OpenAt();
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_TRUE((*opened)->Issues());
  const std::string key = MustHave(MakeKey());
  const std::string chain = MustHave((*opened)->Issue(MustHave(MakeRequest(key)), "bb", now_));
  EXPECT_TRUE(Check((*opened)->authority(), chain, key, "bb", now_).ok());
  struct stat found {};
  for (const char* file : {"/authority.pem", "/node.pem", "/issuer.pem"}) {
    ASSERT_EQ(stat((folder_ + file).c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777, 0600U) << file;
  }
}

TEST_F(CredentialsTest, TheAuthoritysKeyCanBeKeptElsewhere) {
  const std::string out = outer_.path() + "/authority-key.pem";
  ASSERT_TRUE(Credentials::Found(folder_, "f00d", "aa", out, now_).ok());
  ExpectOpens();
  auto opened = OpenAt();
  const std::string key = MustHave(MakeKey());
  const std::string chain = MustHave((*opened)->Issue(MustHave(MakeRequest(key)), "bb", now_));
  EXPECT_TRUE(Check((*opened)->authority(), chain, key, "bb", now_).ok());
  EXPECT_NE(MustHave(FingerprintOf(TextOf(folder_ + "/issuer.pem"))), MustHave(FingerprintOf((*opened)->authority())));
  EXPECT_EQ(Credentials::Found(outer_.path() + "/other", "f00d", "aa", out, now_).error().code,
            ErrorCode::kAlreadyExists);
}

// Should the host that signs be lost, another node signs by what was kept.
TEST_F(CredentialsTest, TheKeptKeyMakesANewIssuer) {
  const std::string out = outer_.path() + "/authority-key.pem", other_out = outer_.path() + "/other-key.pem";
  const std::string first = outer_.path() + "/first";
  ASSERT_TRUE(Credentials::Found(first, "f00d", "5e", out, now_).ok());
  auto signs = Credentials::Open(first, "5e", now_);
  ASSERT_TRUE(signs.ok());
  const std::string key = MustHave(MakeKey());
  const std::string chain = MustHave((*signs)->Issue(MustHave(MakeRequest(key)), "aa", now_));
  ASSERT_TRUE(Credentials::Write(folder_, (*signs)->authority(), key, chain, "aa", now_).ok());
  EXPECT_FALSE((*OpenAt())->Issues());

  EXPECT_EQ(Credentials::AddIssuer(folder_, out + "-not-there", now_).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(Credentials::Found(outer_.path() + "/other", "f00d", "5e", other_out, now_).ok());
  EXPECT_EQ(Credentials::AddIssuer(folder_, other_out, now_).error().code, ErrorCode::kPermission);
  EXPECT_FALSE(Credentials::AddIssuer(folder_, folder_ + "/authority.pem", now_).ok()) << "without its key";
  EXPECT_FALSE((*OpenAt())->Issues());

  ASSERT_TRUE(Credentials::AddIssuer(folder_, out, now_).ok());
  auto opened = OpenAt();
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_TRUE((*opened)->Issues());
  const std::string joins = MustHave(MakeKey());
  const std::string joined = MustHave((*opened)->Issue(MustHave(MakeRequest(joins)), "bb", now_));
  EXPECT_TRUE(Check((*signs)->authority(), joined, joins, "bb", now_).ok());
}

TEST_F(CredentialsTest, FilesThatOthersMayReadAreRefused) {
  ASSERT_TRUE(Credentials::Found(folder_, "f00d", "aa", "", now_).ok());
  for (const char* file : {"/node.pem", "/issuer.pem", "/authority.pem"}) {
    const std::string path = folder_ + file;
    ASSERT_EQ(chmod(path.c_str(), 0640), 0);
    const Error error = OpenAt().error();
    EXPECT_EQ(error.code, ErrorCode::kPermission);
    EXPECT_NE(error.message.find("chmod 600 " + path), std::string::npos) << error.message;
    ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  }
  ExpectOpens();
}

TEST_F(CredentialsTest, DamagedAndForeignOnesAreRefused) {
  ASSERT_TRUE(Credentials::Found(folder_, "f00d", "aa", "", now_).ok());
  const std::string authority = TextOf(folder_ + "/authority.pem"), node = TextOf(folder_ + "/node.pem");
  const auto put = [&](const char* file, const std::string& text) { std::ofstream(folder_ + file) << text; };
  put("/authority.pem", TestAuthority().authority().certificate);
  EXPECT_EQ(OpenAt().error().code, ErrorCode::kCorrupt);
  put("/authority.pem", authority);
  for (size_t size = 0; size + 100 < node.size(); size += 50) {
    put("/node.pem", node.substr(0, size));
    EXPECT_FALSE(OpenAt().ok()) << size;
  }
  put("/node.pem", std::string(100'000, 'x'));
  EXPECT_EQ(OpenAt().error().code, ErrorCode::kCorrupt);
  put("/node.pem", node);
  ExpectOpens();
  put("/issuer.pem", node);
  EXPECT_EQ(OpenAt().error().code, ErrorCode::kCorrupt);
  std::filesystem::remove(folder_ + "/issuer.pem");
  ExpectOpens();
  EXPECT_EQ(OpenAt(366).error().code, ErrorCode::kPermission);
  EXPECT_EQ(OpenAt(-366).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(Credentials::Open(folder_, "bb", now_).error().code, ErrorCode::kPermission);
}

// A cluster that was off for longer than a year: nobody else could give the node that signs a new one.
TEST_F(CredentialsTest, ANodeThatSignsHelpsItself) {
  ASSERT_TRUE(Credentials::Found(folder_, "f00d", "aa", "", now_).ok());
  EXPECT_TRUE(OpenAt(800).ok());
  EXPECT_TRUE(OpenAt(1100).ok());
  EXPECT_EQ(Credentials::Open(folder_, "bb", {now_.seconds + 800 * 24 * 3600, 0}).error().code, ErrorCode::kPermission);
}

TEST_F(CredentialsTest, AreRenewedWhenTwoThirdsOfTheirLifeAreOver) {
  ASSERT_TRUE(Credentials::Found(folder_, "f00d", "aa", "", now_).ok());
  const std::unique_ptr<Credentials> opened = MustHave(OpenAt());
  const auto at = [&](int64_t days) { return Timestamp{now_.seconds + days * 24 * 3600, 0}; };
  EXPECT_FALSE(opened->IsRenewalDue(at(0)));
  EXPECT_FALSE(opened->IsRenewalDue(at(243)));
  EXPECT_TRUE(opened->IsRenewalDue(at(244)));
  const std::string before = TextOf(folder_ + "/node.pem");
  // What does not fit changes nothing.
  EXPECT_FALSE(
      opened->Renew([](const std::string&) -> Result<std::string> { return std::string("none"); }, at(244)).ok());
  EXPECT_FALSE(
      opened->Renew([&](const std::string& request) { return opened->Issue(request, "bb", at(244)); }, at(244)).ok());
  EXPECT_EQ(TextOf(folder_ + "/node.pem"), before);
  ASSERT_TRUE(
      opened->Renew([&](const std::string& request) { return opened->Issue(request, "aa", at(244)); }, at(244)).ok());
  EXPECT_NE(TextOf(folder_ + "/node.pem"), before);
  EXPECT_FALSE(opened->IsRenewalDue(at(244)));
  EXPECT_TRUE(OpenAt(500).ok());
}

}  // namespace
}  // namespace cairnfs::admission
