// The look of `cairnfs status` and the keys of its JSON, which docs/operating.md tells.
#include "output.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cluster_output.h"
#include "json_text.h"

namespace cairnfs::tools {
namespace {

using nlohmann::json;

constexpr uint64_t kMiB = uint64_t{1} << 20;

control::StatusReply OneHost() {
  control::StatusReply status;
  status.set_version("1.2");
  status.set_mount_point("/m\n");
  status.set_data("/d");
  status.set_pid(42);
  status.set_log("stderr");
  status.set_dedup("mount");
  status.set_uptime_seconds(7);
  control::Space& space = *status.mutable_space();
  space.set_logical_bytes(30 * kMiB);
  space.set_unique_bytes(20 * kMiB);
  space.set_on_disk_bytes(40 * kMiB);
  space.set_metadata_bytes(3 * kMiB);
  space.set_free_segment_bytes(4 * kMiB);
  space.set_dead_bytes(5 * kMiB);
  space.set_available_bytes(6 * kMiB);
  space.set_inode_count(8);
  space.set_chunk_count(9);
  space.set_metadata_room_bytes(10 * kMiB);
  control::Live& live = *space.mutable_live();
  live.set_live_bytes(15 * kMiB);
  live.set_live_chunk_count(11);
  live.set_unreferenced_bytes(12 * kMiB);
  live.set_unreferenced_chunk_count(13);
  control::Activity& activity = *status.mutable_activity();
  activity.set_dirty_bytes(14 * kMiB);
  activity.set_open_files(15);
  activity.set_write_bytes_total(16 * kMiB);
  activity.set_read_bytes_total(17 * kMiB);
  activity.set_new_bytes_total(18 * kMiB);
  activity.set_known_bytes_total(19 * kMiB);
  activity.set_pool_buffers(20);
  activity.set_pool_buffers_free(21);
  activity.set_pool_buffers_touched(22);
  control::Passthrough& passthrough = *activity.mutable_passthrough();
  passthrough.set_files(1);
  passthrough.set_bytes(25 * kMiB);
  passthrough.set_opens_total(26);
  passthrough.set_fills_total(27);
  passthrough.set_fills_failed_total(28);
  activity.set_write_bytes_per_second(23.5 * kMiB);
  activity.set_read_bytes_per_second(24.5 * kMiB);
  return status;
}

TEST(StatusText, OfOneHost) {
  EXPECT_EQ(StatusText(OneHost()), R"(mount point   /m\x0a
data          /d
daemon        cairnfsd 1.2, process 42, up 7 s, log stderr
dedup         mount: equal data is stored once, whoever wrote it
logical       30.0 MiB in 8 inodes
unique        20.0 MiB in 9 chunks
live          15.0 MiB in 11 chunks that files need; dead, until collected: 12.0 MiB in 13 (counted now)
on disk       40.0 MiB (3.0 MiB of it metadata; 5.0 MiB wasted in segments; 4.0 MiB more kept for reuse)
dedup ratio   2.00
available     6.0 MiB
names         room for 10.0 MiB more of names and attributes
not durable   14.0 MiB
rates         23.5 MiB/s written, 24.5 MiB/s read
since start   16.0 MiB written (18.0 MiB stored anew, 19.0 MiB known), 17.0 MiB read
pool          21 of 20 buffers free, 22 in memory
passthrough   1 file in memory, 25.0 MiB; 26 opens, 27 fills, 28 that failed
open files    15
collecting    no
state         good
last error    none
)");
}

TEST(StatusText, SaysWhyTheKernelReadsNothingItself) {
  control::StatusReply status = OneHost();
  status.mutable_activity()->mutable_passthrough()->set_why_not("an old\nkernel");
  EXPECT_NE(StatusText(status).find("passthrough   no: an old\\x0akernel\n"), std::string::npos) << StatusText(status);
}

TEST(GcLine, TellsWhatIsLeftOfAPhase) {
  constexpr std::chrono::seconds kMinute{60};
  control::GcProgress first, now;
  now.set_phase("mark");
  now.set_inodes_marked(1000);
  EXPECT_EQ(GcLine(now, first, kMinute), "mark: 1000 inodes; the sweep follows") << "not counted yet";
  now.set_inodes_total(4000);
  EXPECT_EQ(GcLine(now, first, kMinute), "mark: 1000 of about 4000 inodes, about 3 min left; the sweep follows");
  first.set_inodes_marked(500);  // it ran already when somebody asked
  EXPECT_EQ(GcLine(now, first, kMinute), "mark: 1000 of about 4000 inodes, about 6 min left; the sweep follows");
  now.set_phase("sweep");
  now.set_chunks_total(300);
  now.set_chunks_seen(150);
  now.set_chunks_freed(20);
  now.set_bytes_freed(5 << 20);
  EXPECT_EQ(GcLine(now, first, kMinute), "sweep: 150 of 300 chunks, about 60 s left; 20 freed (5.0 MiB), 0 B moved");
  now.set_phase("waits for host2");
  EXPECT_EQ(GcLine(now, first, kMinute), "waits for host2");
}

TEST(StatusText, OfAHostOfACluster) {
  control::StatusReply status = OneHost();
  status.mutable_space()->clear_live();
  status.mutable_space()->clear_metadata_room_bytes();
  control::RefusedCommit& failure = *status.add_failures();
  failure.set_at(1'763'757'685);
  failure.set_host("one");
  failure.set_directory("step");
  failure.set_left_out(4);
  control::RefusalCause& cause = *failure.add_causes();
  cause.set_file("step/f");
  cause.set_host("two");
  cause.set_cause("lost");
  status.set_last_error("disk on fire");
  status.set_failing(true);
  control::ClusterActivity& cluster = *status.mutable_cluster();
  cluster.set_nodes_up(1);
  cluster.set_nodes_down(2);
  cluster.set_nodes_out(3);
  cluster.set_session_holds(true);
  cluster.set_new_in_cluster_bytes_total(4 * kMiB);
  cluster.set_known_in_cluster_bytes_total(5 * kMiB);
  cluster.set_wire_sent_bytes_total(6 * kMiB);
  cluster.set_wire_received_bytes_total(7 * kMiB);
  cluster.set_unacknowledged_bytes(8 * kMiB);
  cluster.set_missing_copies(9);
  cluster.set_metadata_reads_total(10);
  cluster.set_metadata_commits_total(11);
  cluster.set_metadata_answers_total(12);
  cluster.set_delegations(13);
  const std::string text = StatusText(status);
  for (const char* line :
       {"logical       30.0 MiB in 8 inodes, of all hosts\n", "unique        20.0 MiB in 9 chunks, on this host\n",
        "since start   16.0 MiB written (4.0 MiB new to the cluster, 5.0 MiB known), 17.0 MiB read\n",
        "state         failing: nothing becomes durable\n", "cluster       1 nodes up, 2 down, 3 out; session good\n",
        "network       6.0 MiB sent, 7.0 MiB received; 8.0 MiB lack copies yet; 9 copies missing\n",
        "metadata      10 reads, 11 transactions; 12 answers from memory under 13 delegations\n",
        "failure       2025-11-21 20:41:25 UTC: step was not renamed on one: 'step/f': host two: lost; and 4 more\n"
        "last error    disk on fire\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  for (const char* name : {"dedup ratio", "names "}) EXPECT_EQ(text.find(name), std::string::npos) << name;
}

TEST(StatusJson, HasTheFieldsOfAllPartsInOneObject) {
  control::StatusReply status = OneHost();
  status.set_last_error("\xff");
  const json object = json::parse(JsonText(StatusJson(status)));
  EXPECT_EQ(object.at("version"), "1.2");
  EXPECT_EQ(object.at("logical_bytes"), 30 * kMiB);
  EXPECT_EQ(object.at("open_files"), 15);
  EXPECT_EQ(object.at("live_chunk_count"), 11);
  EXPECT_EQ(object.at("metadata_room_bytes"), 10 * kMiB);
  EXPECT_EQ(object.at("write_bytes_per_second"), 23.5 * kMiB);
  EXPECT_EQ(object.at("collecting"), false);
  EXPECT_EQ(object.at("failures"), json::array());
  EXPECT_EQ(object.at("last_error"), "\xEF\xBF\xBD");  // what is no UTF-8
  EXPECT_EQ(object.at("dedup_ratio"), 2.0);
  EXPECT_EQ(object.at("passthrough").at("files"), 1);
  EXPECT_EQ(object.size(), 54U);
  for (const char* absent : {"space", "activity", "live", "cluster", "metadata_owners"}) {
    EXPECT_FALSE(object.contains(absent)) << absent;
  }
}

TEST(StatusJson, HasWhatIsThere) {
  control::StatusReply status = OneHost();
  status.mutable_space()->clear_live();
  status.mutable_space()->clear_metadata_room_bytes();
  status.mutable_cluster()->set_copies(3);
  status.add_failures()->set_directory("step");
  control::MetadataOwner& owner = *status.add_metadata_owners();
  owner.set_uid(1000);
  owner.set_bytes(5);
  const json object = json::parse(JsonText(StatusJson(status)));
  EXPECT_EQ(
      object.at("failures"),
      json::array(
          {{{"at", 0}, {"host", ""}, {"uid", 0}, {"directory", "step"}, {"causes", json::array()}, {"left_out", 0}}}));
  EXPECT_EQ(object.at("metadata_owners"),
            json::array({{{"uid", 1000}, {"bytes", 5}, {"xattr_bytes", 0}, {"inode_count", 0}}}));
  EXPECT_EQ(object.at("cluster").at("copies"), 3);
  EXPECT_EQ(object.at("cluster").size(), 25U);
  for (const char* absent : {"live_bytes", "counted_seconds_ago", "metadata_room_bytes", "dedup_ratio"}) {
    EXPECT_FALSE(object.contains(absent)) << absent;
  }
}

control::ClusterReply TwoNodes() {
  control::ClusterReply reply;
  reply.set_filesystem("ff");
  reply.set_metadata("node:h:1");
  reply.set_copies(2);
  reply.set_min_replicas(1);
  control::Node& one = *reply.add_nodes();
  one.set_id("1");
  one.set_name("one");
  one.set_state("up");
  one.set_full(true);
  one.set_is_self(true);
  one.set_weight(1.5);
  one.mutable_usage()->set_stored_bytes(kMiB);
  one.mutable_usage()->set_repair_chunks_left(10);
  one.mutable_usage()->set_repair_chunks_per_second(2);
  one.mutable_usage()->set_repair_phase("copying");
  control::Node& two = *reply.add_nodes();
  two.set_id("2");
  two.set_name("two");
  two.set_state("out");
  two.set_domain("rack");
  return reply;
}

TEST(ClusterText, OfTwoNodes) {
  EXPECT_EQ(ClusterText(TwoNodes()), R"(filesystem    ff
metadata      node:h:1
copies        2, of which a commit needs 1 (min_replicas is lowered)
session       good
nodes         1 up, 0 down, 1 out
copying       0 B written that lack copies yet
missing       0 copies of stored chunks
repair        copying, 10 chunks left, 0 B/s, about 5 s left
collection    none yet

  name  state     address  domain  weight  stored   free  session  id
* one   up, full           -       1.5     1.0 MiB  0 B   0 s      1
  two   out                rack    0       -        -     -        2
)");
}

TEST(ClusterText, OfAStandbyForTheNames) {
  control::ClusterReply reply = TwoNodes();
  control::NamesHosts& names = *reply.mutable_names();
  auto line = [&] {
    const std::string text = ClusterText(reply);
    const size_t begin = text.find("names         ");
    return begin == std::string::npos ? text : text.substr(begin + 14, text.find('\n', begin) - begin - 14);
  };
  names.set_state("none");
  EXPECT_EQ(line(), "served by none that answers");
  names.set_primary("one");
  EXPECT_EQ(line(), "served by one, which has no standby");
  names.set_standby("two");
  names.set_witness("three");
  names.set_state("copying");
  EXPECT_EQ(line(), "served by one, being copied to standby two, witness three");
  names.set_state("whole");
  EXPECT_EQ(line(), "served by one, standby two has all of them, witness three");
  names.set_state("detached");
  names.set_detached_seconds_ago(30);
  names.set_behind_revisions(7);
  EXPECT_EQ(line(),
            "served by one, standby two is behind since 30 s ago, by 7 revisions as far as known, witness three");
  EXPECT_EQ(json::parse(ClusterJson(reply)).at("names").at("behind_revisions"), 7);
}

TEST(ClusterText, OfANodeThatIsDrained) {
  control::ClusterReply reply = TwoNodes();
  control::Node& one = *reply.mutable_nodes(0);
  one.set_drain("draining");
  EXPECT_NE(NodesText(reply).find("* one   up, full, draining "), std::string::npos) << NodesText(reply);
  EXPECT_EQ(DrainText(one), "one has 1.0 MiB; 10 chunks left to copy, 0 B/s, about 5 s left");
  one.mutable_usage()->set_repair_chunks_per_second(0);
  EXPECT_EQ(DrainText(one), "one has 1.0 MiB");
  one.set_state("down");
  EXPECT_EQ(DrainText(one), "one is down: it goes on when that node is back");
  EXPECT_EQ(json::parse(NodeJson(control::NodeReply(), "drained")).at("drained"), true);
}

TEST(ClusterText, OfACollection) {
  control::ClusterReply reply = TwoNodes();
  control::NodeCollection& one = *reply.mutable_nodes(0)->mutable_collection();
  control::NodeCollection& two = *reply.mutable_nodes(1)->mutable_collection();
  one.set_phase("done");
  one.set_bytes_freed(kMiB);
  one.set_ended_seconds_ago(30);
  two.set_phase("begun");
  EXPECT_NE(ClusterText(reply).find("\ncollection    runs on two (begun)\n"), std::string::npos) << ClusterText(reply);
  two.set_phase("failed");
  two.set_bytes_freed(2 * kMiB);
  two.set_ended_seconds_ago(20);
  two.set_error("a recipe\ncannot be read");
  EXPECT_NE(ClusterText(reply).find(
                "\ncollection    20 s ago, 3.0 MiB freed on all nodes; two: a recipe\\x0acannot be read\n"),
            std::string::npos)
      << ClusterText(reply);
  reply.set_collection_held_up("the store went back");
  EXPECT_NE(
      ClusterText(reply).find("\ncollection    held up: the store went back (cairnfs gc --after-restore allows it)\n"),
      std::string::npos);
}

TEST(ClusterJson, OfTwoNodes) {
  const json object = json::parse(ClusterJson(TwoNodes()));
  EXPECT_EQ(object.at("session"), "good");
  EXPECT_EQ(object.at("min_replicas_lowered"), true);
  EXPECT_EQ(object.at("nodes_out"), 1);
  EXPECT_EQ(object.at("nodes_joined"), 0);
  EXPECT_EQ(object.at("repair_seconds_left"), 5.0);
  EXPECT_EQ(object.size(), 18U);
  ASSERT_EQ(object.at("nodes").size(), 2U);
  EXPECT_EQ(object.at("nodes")[0].at("stored_bytes"), kMiB);
  EXPECT_EQ(object.at("nodes")[0].size(), 18U);  // all but the chunks in a second
  EXPECT_EQ(object.at("nodes")[1].size(), 9U);   // it has told nothing
}

}  // namespace
}  // namespace cairnfs::tools
