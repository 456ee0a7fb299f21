#include "daemon/cluster_config.h"

#include <gtest/gtest.h>

#include "daemon/network.h"

namespace cairnfs::daemon {
namespace {

Config Good() {
  Config config;
  config.metadata = "etcd://10.0.0.1:2379,10.0.0.2:2379/cairnfs";
  config.listen = "10.0.0.5:7401";
  config.trusted_network = {"192.168.0.0/16", "10.0.0.0/8"};
  return config;
}

// The message of the error, or "no error".
std::string MessageOf(const Config& config) {
  Status checked = CheckCluster(config);
  return checked.ok() ? "no error" : checked.error().message;
}

bool Mentions(const std::string& message, std::string_view text) { return message.find(text) != std::string::npos; }

TEST(ClusterConfigTest, AcceptsGoodOnes) {
  EXPECT_EQ(MessageOf(Config{}), "no error");
  EXPECT_EQ(MessageOf(Good()), "no error");
  Config serving = Good();
  serving.metadata.clear();
  serving.serve_metadata = "10.0.0.5:7402";
  EXPECT_EQ(MessageOf(serving), "no error");
  EXPECT_EQ(MetadataUrl(serving), "node:10.0.0.5:7402");
  EXPECT_EQ(AdvertisedAddress(serving), "10.0.0.5:7401");
  serving.metadata = "node:cairn1:7402";
  EXPECT_EQ(MessageOf(serving), "no error");
}

TEST(ClusterConfigTest, OfOneOfThreeHostsWithTheNames) {
  Config config = Good();
  EXPECT_FALSE(MayHaveStandby(config));
  config.metadata = "node:10.0.0.5:7402,10.0.0.6:7402,10.0.0.7:7402";
  EXPECT_EQ(MessageOf(config), "no error");
  EXPECT_TRUE(MayHaveStandby(config));
  config.serve_metadata = "10.0.0.6:7402";
  EXPECT_EQ(MessageOf(config), "no error");
  config.serve_metadata = "10.0.0.8:7402";
  EXPECT_TRUE(Mentions(MessageOf(config), "is none of the three hosts in metadata")) << MessageOf(config);
  config.metadata = "node:10.0.0.5:7402,10.0.0.6:7402";
  EXPECT_TRUE(Mentions(MessageOf(config), "names 2 hosts")) << MessageOf(config);
}

TEST(ClusterConfigTest, TrustsPrivateNetworksOnly) {
  Config config = Good();
  const std::vector<std::string> good = {"10.0.0.0/8",     "172.16.0.0/12", "192.168.7.0/24", "100.64.0.0/10",
                                         "169.254.0.0/16", "127.0.0.0/8",   "fd00::/8",       "fc12:3456::/32",
                                         "fe80::/10",      "::1/128",       "10.1.2.3/32"};
  for (const std::string& network : good) {
    config.trusted_network = {"10.0.0.0/8", network};
    EXPECT_EQ(MessageOf(config), "no error");
  }
  const std::vector<std::string> bad = {
      "0.0.0.0/0",   "8.0.0.0/6",      "11.0.0.0/8", "172.0.0.0/8",   "172.32.0.0/12", "192.0.2.0/24", "193.168.0.0/16",
      "100.0.0.0/9", "169.254.0.0/15", "fc00::/7",   "2001:db8::/32", "::/0",          "fe00::/8"};
  for (const std::string& network : bad) {
    config = Good();
    config.trusted_network = {"10.0.0.0/8", network};
    EXPECT_TRUE(Mentions(MessageOf(config), "\"" + network + "\" is no private network")) << MessageOf(config);
    EXPECT_TRUE(Mentions(MessageOf(config), "set trust_public_network = true")) << MessageOf(config);
    config.trust_public_network = true;
    EXPECT_EQ(MessageOf(config), "no error");
  }
}

TEST(ClusterConfigTest, WithoutTrustedNetworksNodesHaveCertificates) {
  Config config = Good();
  EXPECT_FALSE(config.HasCertificates());
  config.serve_join = "10.0.0.1:7403";
  EXPECT_TRUE(Mentions(MessageOf(config), "serve_join is for a cluster whose nodes have certificates"));
  config.trusted_network.clear();
  EXPECT_TRUE(config.HasCertificates());
  EXPECT_EQ(MessageOf(config), "no error");
  config.serve_join = config.listen;
  EXPECT_TRUE(Mentions(MessageOf(config), "stands for two ports"));
  config.serve_join = "0.0.0.0:7403";
  EXPECT_TRUE(Mentions(MessageOf(config), "no address that others could use"));
  config.serve_join.clear();
  config.metadata = "etcd://10.0.0.9:2379/cairnfs";
  config.tls_certificate = "/c.pem";
  EXPECT_TRUE(Mentions(MessageOf(config), "tls_ca is not set"));
  config.tls_ca = "/ca.pem";
  EXPECT_TRUE(Mentions(MessageOf(config), "tls_certificate and tls_key go together"));
  config.tls_key = "/key.pem";
  EXPECT_EQ(MessageOf(config), "no error");
  config.metadata = "node:10.0.0.1:7402";
  EXPECT_TRUE(Mentions(MessageOf(config), "are for an etcd"));
}

TEST(ClusterConfigTest, ListensInTrustedNetworksOnly) {
  Config config = Good();
  config.trusted_network = {"10.1.0.0/16"};
  EXPECT_TRUE(Mentions(MessageOf(config), "does not lie in trusted_network (10.1.0.0/16)"));
  config = Good();
  config.trusted_network = {"10.0.0.0/8", "10.77.0.0/33"};
  EXPECT_TRUE(Mentions(MessageOf(config),
                       "trusted_network: \"10.77.0.0/33\" is no network: the prefix of an IPv4 "
                       "address has at most 32 bits"));
  config = Good();
  config.listen = "0.0.0.0:7401";
  EXPECT_TRUE(Mentions(MessageOf(config), "give the address of the interface"));
  config.trusted_network = {"0.0.0.0/0"};
  config.trust_public_network = true;
  EXPECT_TRUE(Mentions(MessageOf(config), "set advertise"));
  config.advertise = "cairn1:7401";
  EXPECT_EQ(MessageOf(config), "no error");
  config.listen = "cairn1:7401";
  EXPECT_TRUE(Mentions(MessageOf(config), "not a name"));
  config = Good();
  config.metadata.clear();
  config.serve_metadata = "172.16.0.1:7402";
  EXPECT_TRUE(Mentions(MessageOf(config), "serve_metadata = \"172.16.0.1:7402\" does not lie"));
}

TEST(ClusterConfigTest, RefusesWhatMakesNoSense) {
  Config config;
  config.listen = "10.0.0.5:7401";
  EXPECT_TRUE(Mentions(MessageOf(config), "neither metadata nor serve_metadata"));
  config = Good();
  config.listen.clear();
  EXPECT_TRUE(Mentions(MessageOf(config), "listen is not set"));
  config = Good();
  config.metadata = "zookeeper://a:1";
  EXPECT_TRUE(Mentions(MessageOf(config), "metadata: must be"));
  config.metadata = "etcd://a:1,b";
  EXPECT_TRUE(Mentions(MessageOf(config), "metadata: \"b\" is no HOST:PORT"));
  config.metadata = "etcd://";
  EXPECT_TRUE(Mentions(MessageOf(config), "metadata: \"etcd://\" lacks an endpoint"));
  config.metadata = "node:10.0.0.1";
  EXPECT_TRUE(Mentions(MessageOf(config), "is no HOST:PORT"));
  config = Good();
  config.serve_metadata = "10.0.0.5:7402";
  EXPECT_TRUE(Mentions(MessageOf(config), "leave one of them out"));
  config = Good();
  config.min_replicas = 3;
  EXPECT_TRUE(Mentions(MessageOf(config), "min_replicas = 3 is more than copies = 2"));
  config = Good();
  config.lease_ms = 60'000;
  config.out_after_ms = 30'000;
  EXPECT_TRUE(Mentions(MessageOf(config), "out_after"));
}

TEST(NetworkTest, Loopback) {
  for (const char* ip : {"127.0.0.1", "127.9.0.3", "::1"}) EXPECT_TRUE(ParseIp(ip)->IsLoopback()) << ip;
  for (const char* ip : {"10.0.0.127", "128.0.0.1", "::", "::2", "fe80::1"})
    EXPECT_FALSE(ParseIp(ip)->IsLoopback()) << ip;
}

TEST(NetworkTest, Contains) {
  auto contains = [](std::string_view network, std::string_view address) {
    return ParseNetwork(network)->Contains(*ParseIp(address));
  };
  EXPECT_TRUE(contains("10.0.0.0/8", "10.255.1.2"));
  EXPECT_FALSE(contains("10.0.0.0/8", "11.0.0.0"));
  EXPECT_TRUE(contains("10.1.2.128/25", "10.1.2.129"));
  EXPECT_FALSE(contains("10.1.2.128/25", "10.1.2.127"));
  EXPECT_TRUE(contains("0.0.0.0/0", "1.2.3.4"));
  EXPECT_FALSE(contains("0.0.0.0/0", "fd00::1"));
  EXPECT_TRUE(contains("fd00::/8", "fd12::1"));
  EXPECT_FALSE(contains("fd00::/8", "fe80::1"));
  for (const char* wrong : {"", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/", "10.0.0.1/8", "x/8", "fd00::/129"}) {
    EXPECT_FALSE(ParseNetwork(wrong).ok()) << wrong;
  }
}

TEST(NetworkTest, KnowsTheAddressesOfThisHost) {
  for (const char* here : {"127.0.0.1", "0.0.0.0", "::"}) EXPECT_TRUE(MayBeOfThisHost(*ParseIp(here))) << here;
  EXPECT_FALSE(MayBeOfThisHost(*ParseIp("192.0.2.1")));  // for documentation, and no host's
}

TEST(NetworkTest, HostPorts) {
  EXPECT_EQ(ParseHostPort("node1:7401")->host, "node1");
  EXPECT_EQ(ParseHostPort("[fd00::1]:7401")->host, "fd00::1");
  EXPECT_EQ(FormatHostPort(*ParseHostPort("[fd00::1]:7401")), "[fd00::1]:7401");
  EXPECT_EQ(FormatHostPort({"10.0.0.1", 80}), "10.0.0.1:80");
  for (const char* wrong : {"", ":1", "a", "a:", "a:x", "a:65536", "fd00::1:7401", "[a]:1", "a b:1", "a/b:1"}) {
    EXPECT_FALSE(ParseHostPort(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace cairnfs::daemon
