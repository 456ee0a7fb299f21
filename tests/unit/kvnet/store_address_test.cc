// What texts mean which store, and what is said of those that mean none.
#include "kvnet/store_address.h"

#include <gtest/gtest.h>

#include <utility>

namespace cairnfs::kvnet {
namespace {

using Kind = StoreAddress::Kind;
using Texts = std::vector<std::string>;

StoreAddress Parsed(std::string_view text) {
  auto address = StoreAddress::Parse(text);
  EXPECT_TRUE(address.ok()) << text;
  return address.ok() ? *address : StoreAddress{};
}

TEST(StoreAddress, OfANode) {
  for (const char* endpoint : {"127.0.0.1:7402", "cairn1.example:1", "[fd00::1]:65535"}) {
    const StoreAddress address = Parsed(StoreAddress::TextOfNode(endpoint));
    EXPECT_EQ(address.kind, Kind::kNode);
    EXPECT_EQ(address.endpoints, Texts{endpoint});
    EXPECT_EQ(address.prefix, "");
  }
}

TEST(StoreAddress, OfThreeNodes) {
  const StoreAddress address = Parsed("node:a:7402,10.0.0.2:7402,[fd00::1]:7402");
  EXPECT_EQ(address.kind, Kind::kNode);
  EXPECT_EQ(address.endpoints, (Texts{"a:7402", "10.0.0.2:7402", "[fd00::1]:7402"}));
  EXPECT_TRUE(address.MayHaveStandby());
  EXPECT_FALSE(Parsed("node:a:7402").MayHaveStandby());
  EXPECT_FALSE(Parsed("etcd://a:1,b:1,c:1").MayHaveStandby());
}

TEST(StoreAddress, OfNodesThatItNames) {
  const std::string id = "00112233445566778899aabbccddeeff";
  const StoreAddress one = Parsed(StoreAddress::TextOfNode("[fd00::1]:7402", id));
  EXPECT_EQ(one.endpoints, Texts{"[fd00::1]:7402"});
  EXPECT_EQ(one.nodes, Texts{id});
  EXPECT_TRUE(one.NamesNodes());
  const StoreAddress three = Parsed("node:a:7402," + id + "@b:7402,c:7402");
  EXPECT_EQ(three.endpoints, (Texts{"a:7402", "b:7402", "c:7402"}));
  EXPECT_EQ(three.nodes, (Texts{"", id, ""}));
  EXPECT_TRUE(three.NamesNodes());
  EXPECT_FALSE(Parsed("node:a:7402,b:7402,c:7402").NamesNodes());
}

TEST(StoreAddress, OfAnEtcd) {
  const StoreAddress address = Parsed("etcd://a:2379,10.0.0.2:2380,[fd00::1]:2379/some/prefix");
  EXPECT_EQ(address.kind, Kind::kEtcd);
  EXPECT_EQ(address.endpoints, (Texts{"a:2379", "10.0.0.2:2380", "[fd00::1]:2379"}));
  EXPECT_EQ(address.prefix, "/some/prefix/");
  EXPECT_EQ(Parsed("etcd://a:2379/some/prefix/").prefix, "/some/prefix/");
  for (const char* without : {"etcd://a:2379", "etcd://a:2379/"}) EXPECT_EQ(Parsed(without).prefix, "/cairnfs/");
}

TEST(StoreAddress, KindOf) {
  EXPECT_EQ(StoreAddress::KindOf("node:"), Kind::kNode);
  EXPECT_EQ(StoreAddress::KindOf("etcd://"), Kind::kEtcd);
  for (const char* text : {"", "node", "10.0.0.1:7402", "etcd:a:2379", "http://a:2379"}) {
    EXPECT_FALSE(StoreAddress::KindOf(text).has_value()) << text;
  }
}

TEST(StoreAddress, SaysWhatIsWrong) {
  const std::pair<std::string, std::string> wrong[] = {
      {"", "write node:HOST:PORT or etcd://HOST:PORT"},
      {"10.0.0.1:7402", "names no store"},
      {"node:", "\"\" is no HOST:PORT: it has no port"},
      {"node:host", "\"host\" is no HOST:PORT: it has no port"},
      {"node:a:1,b:1,a:1", "names a:1 twice"},
      {"node::7402", "it has no host"},
      {"node:[]:7402", "it has no host"},
      {"node:host:0", "it has the port '0', and a port is a number from 1 to 65535"},
      {"node:host:65536", "from 1 to 65535"},
      {"node:host:7x", "it has the port '7x'"},
      {"node:fd00::1:7402", "stands in brackets"},
      {"node:[host]:7402", "brackets, which only an IPv6 host has"},
      {"node:[::1]x]:7402", "a letter that hosts do not have"},
      {"node:a:7402,b:7402", "2 hosts"},
      {"node:a:7402,b:7402,c:7402,d:7402", "4 hosts"},
      {"node:a:7402,b,c:7402", "no port"},
      {"node:a b:7402", "a letter that hosts do not have"},
      {"node:a:7402/prefix", "it has the port '7402/prefix'"},
      {"node:5e@a:7402", "\"5e\" before an @, and that is no id"},
      {"node:00112233445566778899AABBCCDDEEFF@a:7402", "in lower case"},
      {"node:00112233445566778899aabbccddeeff@a", "\"a\" is no HOST:PORT: it has no port"},
      {"etcd://", "\"etcd://\" lacks an endpoint of the etcd; write etcd://HOST:PORT"},
      {"etcd:///prefix", "lacks an endpoint"},
      {"etcd://a:2379,", "\"\" is no HOST:PORT"},
      {"etcd://a:2379,,b:2379", "\"\" is no HOST:PORT"},
      {"etcd://a:2379,b", "\"b\" is no HOST:PORT: it has no port"},
      {"etcd://http://a:2379", "it has the port ''"},
  };
  for (const auto& [text, words] : wrong) {
    const auto address = StoreAddress::Parse(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.error().code, ErrorCode::kInvalidArgument) << text;
    EXPECT_NE(address.error().message.find(words), std::string::npos) << text << ": " << address.error().message;
  }
}

TEST(StoreAddress, TextOfAnEtcdNamesIt) {
  const std::string text = StoreAddress::TextOfEtcd({"a:2379", "[::1]:2379"}, "/team/ckpt/");
  EXPECT_EQ(text, "etcd://a:2379,[::1]:2379/team/ckpt/");
  const StoreAddress address = Parsed(text);
  EXPECT_EQ(address.endpoints, (Texts{"a:2379", "[::1]:2379"}));
  EXPECT_EQ(address.prefix, "/team/ckpt/");
}

}  // namespace
}  // namespace cairnfs::kvnet
