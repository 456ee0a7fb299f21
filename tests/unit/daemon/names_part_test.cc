#include "daemon/names_part.h"

#include <gtest/gtest.h>

namespace cairnfs::daemon {
namespace {

cluster::NodeInfo Node(int number) {
  cluster::NodeInfo info;
  info.id.bytes[0] = static_cast<std::byte>(number);
  info.name = "host" + std::to_string(number);
  return info;
}

kv::Member Member(int number) { return {Node(number).id.ToHex(), "10.0.0." + std::to_string(number) + ":7402"}; }

// Of four nodes 1 is the primary, 2 the standby and 3 the witness.
class NamesPartTest : public ::testing::Test {
 protected:
  kv::NamesHost::Description Host(int number, kv::Register::Standby state, uint64_t accepted) const {
    kv::NamesHost::Description host;
    host.self = Member(number);
    host.vote.accepted.number = accepted;
    host.vote.value = kv::Register{{Member(1), Member(2), Member(3)}, 0, 1, state, 0, 0};
    return host;
  }
  std::string Refusal(const NamesHosts& hosts, int number) const {
    const Status may = CheckHasNoPart(hosts, view_, Node(number));
    if (may.ok()) return "";
    EXPECT_EQ(may.error().code, ErrorCode::kInvalidArgument);
    return may.error().message;
  }

  const cluster::View view_{{Node(1), Node(2), Node(3), Node(4)}, 1};
};

TEST_F(NamesPartTest, NoneOfTheThreeLeavesWhileThereIsAStandby) {
  using Standby = kv::Register::Standby;
  for (const Standby state : {Standby::kCopying, Standby::kWhole, Standby::kDetached}) {
    // The standby is away, and the witness knows an older register, of nobody's standby.
    NamesHosts hosts{Host(3, Standby::kNone, 7), Host(1, state, 9)};
    hosts[1].is_serving = true;
    EXPECT_NE(Refusal(hosts, 1).find("metadata promote on host2, its standby"), std::string::npos) << Refusal(hosts, 1);
    EXPECT_NE(
        Refusal(hosts, 2).find("host2 is the standby of the names: call cairnfs metadata standby --none on host1"),
        std::string::npos)
        << Refusal(hosts, 2);
    EXPECT_NE(Refusal(hosts, 3).find("host3 is the witness"), std::string::npos) << Refusal(hosts, 3);
    EXPECT_EQ(Refusal(hosts, 4), "");
  }
}

TEST_F(NamesPartTest, WithoutAStandbyOnlyWhoServesStays) {
  NamesHosts hosts{Host(1, kv::Register::Standby::kNone, 9), Host(2, kv::Register::Standby::kWhole, 8)};
  hosts[0].is_serving = true;
  EXPECT_NE(Refusal(hosts, 1).find("give it a standby first"), std::string::npos) << Refusal(hosts, 1);
  for (const int other : {2, 3, 4}) EXPECT_EQ(Refusal(hosts, other), "") << other;
  // Three hosts of which none ever had a standby.
  for (auto& host : hosts) host.vote = {};
  EXPECT_NE(Refusal(hosts, 1), "");
  EXPECT_EQ(Refusal(hosts, 2), "");
}

TEST_F(NamesPartTest, NobodyLeavesWhileItIsNotKnownWhoServes) {
  const Status may = CheckHasNoPart({Host(2, kv::Register::Standby::kWhole, 8)}, view_, Node(4));
  ASSERT_FALSE(may.ok());
  EXPECT_EQ(may.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace cairnfs::daemon
