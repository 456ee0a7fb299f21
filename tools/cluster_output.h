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
std::string TokenJson(const control::TokenReply& token);      // what `cairnfs cluster token --json` prints
std::string ForgottenJson(const control::ForgetReply& node);  // what `cairnfs node forget --json` prints
std::string NodesText(const control::ClusterReply& reply);
std::string NodesJson(const control::ClusterReply& reply);

}  // namespace cairnfs::tools
