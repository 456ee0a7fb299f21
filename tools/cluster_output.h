// What `cairnfs cluster status` and `cairnfs node list` print.
#pragma once

#include <string>

#include "control/report.h"

namespace cairnfs::tools {

std::string ClusterText(const control::ClusterReport& report);
std::string ClusterJson(const control::ClusterReport& report);
std::string ReplicasText(const control::ReplicasReport& replicas);  // what `cairnfs cluster set min-replicas` prints
std::string ReplicasJson(const control::ReplicasReport& replicas);
std::string ForgottenJson(const control::ForgottenNode& node);  // what `cairnfs node forget --json` prints
std::string NodesText(const control::ClusterReport& report);
std::string NodesJson(const control::ClusterReport& report);

}  // namespace cairnfs::tools
