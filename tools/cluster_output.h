// What `cairnfs cluster status` and `cairnfs node list` print.
#pragma once

#include <string>

#include "control.pb.h"

namespace cairnfs::tools {

std::string ClusterText(const control::ClusterReply& reply);
std::string ClusterJson(const control::ClusterReply& reply);
std::string ReplicasText(
    const control::SetMinReplicasReply& replicas);  // what `cairnfs cluster set min-replicas` prints
std::string ReplicasJson(const control::SetMinReplicasReply& replicas);
std::string TokenJson(const control::TokenReply& token);  // what `cairnfs cluster token --json` prints
// How far a node that is drained has come, in one line.
std::string DrainText(const control::Node& node);
// What `cairnfs node drain --json` and `node remove --json` print: `what` was done with the node.
std::string NodeJson(const control::NodeReply& node, const char* what);
std::string NodesText(const control::ClusterReply& reply);
std::string NodesJson(const control::ClusterReply& reply);

}  // namespace cairnfs::tools
