#include "admission/certificates.h"

#include <gtest/gtest.h>

#include "../../support/test_authority.h"

namespace cairnfs::admission {
namespace {

constexpr int64_t kDay = 24 * 3600;

class CertificatesTest : public ::testing::Test {
 protected:
  Timestamp At(int64_t days) const { return {now_.seconds + days * kDay, 0}; }
  std::string Sign(const KeyAndCertificate& issuer, const std::string& node) const {
    return MustHave(Issue(issuer, request_, node, now_));
  }
  Result<Validity> CheckAt(int64_t days, const std::string& chain, const std::string& node = "aa") const {
    return Check(authority_.certificate, chain, key_, node, At(days));
  }

  const Timestamp now_ = Clock::WallTime();
  const KeyAndCertificate authority_ = MustHave(MakeAuthority("f00d", now_));
  const std::string key_ = MustHave(MakeKey());
  const std::string request_ = MustHave(MakeRequest(key_));
};

TEST_F(CertificatesTest, OneOfTheAuthorityIsGoodForAYear) {
  const std::string chain = Sign(authority_, "aa");
  const auto valid = CheckAt(0, chain);
  ASSERT_TRUE(valid.ok()) << valid.error().message;
  EXPECT_EQ(valid->end.seconds, now_.seconds + 365 * kDay);
  EXPECT_EQ(valid->begin.seconds, now_.seconds - 3600);
  EXPECT_TRUE(CheckAt(364, chain).ok());
  const Error ended = CheckAt(366, chain).error();
  EXPECT_EQ(ended.code, ErrorCode::kPermission);
  EXPECT_NE(ended.message.find("ended at"), std::string::npos) << ended.message;
  const Error early = CheckAt(-365, chain).error();  // a clock that is a year late
  EXPECT_EQ(early.code, ErrorCode::kUnavailable);
  EXPECT_NE(early.message.find("set the clock"), std::string::npos) << early.message;
}

TEST_F(CertificatesTest, OneOfAnIssuerNeedsTheIssuersBesideIt) {
  const KeyAndCertificate issuer = MustHave(MakeIssuer(authority_, now_));
  const std::string certificate = Sign(issuer, "aa");
  EXPECT_TRUE(CheckAt(0, certificate + issuer.certificate).ok());
  EXPECT_EQ(CheckAt(0, certificate).error().code, ErrorCode::kCorrupt);
  // An issuer cannot make another one.
  const KeyAndCertificate second = MustHave(MakeIssuer(issuer, now_));
  EXPECT_EQ(CheckAt(0, Sign(second, "aa") + second.certificate + issuer.certificate).error().code, ErrorCode::kCorrupt);
  // Nor can a node.
  const KeyAndCertificate node{key_, certificate};
  EXPECT_EQ(CheckAt(0, Sign(node, "aa") + certificate + issuer.certificate).error().code, ErrorCode::kCorrupt);
}

TEST_F(CertificatesTest, AnotherAuthorityKeyOrNodeIsRefused) {
  const KeyAndCertificate other = MustHave(MakeAuthority("f00d", now_));  // of the same name
  EXPECT_EQ(CheckAt(0, Sign(other, "aa")).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(CheckAt(0, Sign(authority_, "bb")).error().code, ErrorCode::kPermission);
  const std::string chain = Sign(authority_, "aa");
  const Error key = Check(authority_.certificate, chain, MustHave(MakeKey()), "aa", now_).error();
  EXPECT_EQ(key.code, ErrorCode::kCorrupt);
  EXPECT_NE(key.message.find("key"), std::string::npos);
  EXPECT_NE(MustHave(FingerprintOf(authority_.certificate)), MustHave(FingerprintOf(other.certificate)));
}

TEST_F(CertificatesTest, ItEndsWithItsIssuers) {
  const std::string chain = MustHave(Issue(authority_, request_, "aa", At(29 * 365), kNodeLife * 5));
  const auto valid = CheckAt(29 * 365, chain);
  ASSERT_TRUE(valid.ok()) << valid.error().message;
  EXPECT_EQ(valid->end.seconds, now_.seconds + 30 * 365 * kDay);
}

TEST_F(CertificatesTest, ARequestMustBeSignedByItsKey) {
  for (size_t size = 0; size < request_.find("-----END"); size += 7) {
    EXPECT_FALSE(Issue(authority_, request_.substr(0, size), "aa", now_).ok()) << size;
  }
  std::string damaged = request_;
  const size_t middle = damaged.size() / 2;
  damaged[middle] = damaged[middle] == 'A' ? 'B' : 'A';
  EXPECT_EQ(Issue(authority_, damaged, "aa", now_).error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(Issue(authority_, authority_.certificate, "aa", now_).ok());
}

TEST_F(CertificatesTest, OnlyAnIdIsCertified) {
  for (const char* id : {"", "AA", "a-a", "aa,DNS:elsewhere", "0123456789abcdef0123456789abcdef0"}) {
    EXPECT_EQ(Issue(authority_, request_, id, now_).error().code, ErrorCode::kInvalidArgument) << id;
  }
}

TEST_F(CertificatesTest, ANodeShowsByItsKeyThatItIsThatNode) {
  const KeyAndCertificate issuer = MustHave(MakeIssuer(authority_, now_));
  const std::string own = key_ + Sign(issuer, "aa") + issuer.certificate;
  const NodeProof proof = MustHave(ProveNode(own, "text"));
  EXPECT_EQ(proof.chain.find("PRIVATE"), std::string::npos);
  const auto is_proof = [&](const NodeProof& given, const char* node = "aa", const char* text = "text") {
    return IsProofOf(authority_.certificate, node, text, given);
  };
  EXPECT_TRUE(is_proof(proof));
  EXPECT_FALSE(is_proof(proof, "bb"));
  EXPECT_FALSE(is_proof(proof, "aa", "another text"));
  EXPECT_FALSE(is_proof({}));
  EXPECT_FALSE(is_proof({proof.chain, ""}));
  EXPECT_FALSE(is_proof({proof.chain, proof.signature + "x"}));
  EXPECT_FALSE(is_proof({Sign(issuer, "aa"), proof.signature})) << "without the issuer's";
  // Whoever has the certificate, which is no secret, has no proof yet.
  EXPECT_FALSE(is_proof({proof.chain, MustHave(ProveNode(MustHave(MakeKey()), "text")).signature}));
  const KeyAndCertificate other = MustHave(MakeAuthority("f00d", now_));
  EXPECT_FALSE(is_proof(MustHave(ProveNode(key_ + Sign(other, "aa"), "text"))));
  // One that has ended still says who it was.
  const std::string old = MustHave(Issue(authority_, request_, "aa", At(-400)));
  EXPECT_TRUE(is_proof(MustHave(ProveNode(key_ + old, "text"))));
  EXPECT_FALSE(ProveNode("", "text").ok());
}

TEST_F(CertificatesTest, AnIssuerIsCheckedAsAWhole) {
  EXPECT_TRUE(CheckIssuer(authority_.certificate, authority_).ok());
  EXPECT_TRUE(CheckIssuer(authority_.certificate, MustHave(MakeIssuer(authority_, now_))).ok());
  EXPECT_FALSE(CheckIssuer(authority_.certificate, MustHave(MakeAuthority("f00d", now_))).ok());
  EXPECT_FALSE(CheckIssuer(authority_.certificate, {key_, authority_.certificate}).ok());
  EXPECT_FALSE(CheckIssuer(authority_.certificate, {key_, Sign(authority_, "aa")}).ok());  // a node's
  EXPECT_FALSE(CheckIssuer(authority_.certificate, {"", ""}).ok());
}

TEST_F(CertificatesTest, TextsThatAreNoneAreErrors) {
  for (const char* text : {"", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "nonsense"}) {
    EXPECT_FALSE(Check(text, Sign(authority_, "aa"), key_, "aa", now_).ok());
    EXPECT_FALSE(CheckAt(0, text).ok());
    EXPECT_FALSE(Check(authority_.certificate, Sign(authority_, "aa"), text, "aa", now_).ok());
    EXPECT_FALSE(FingerprintOf(text).ok());
    EXPECT_FALSE(MakeRequest(text).ok());
    EXPECT_FALSE(MakeIssuer({text, text}, now_).ok());
  }
}

}  // namespace
}  // namespace cairnfs::admission
