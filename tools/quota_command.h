// `cairnfs quota`: what a directory may hold.
#pragma once

#include <string>

#include "base/result.h"
#include "control.pb.h"

namespace cairnfs::tools {

struct QuotaCommand {
  std::string directory;
  std::string logical, unique;  // sizes, as 2T; empty: stays, or none
  bool force = false, json = false;
};

int RunQuotaSet(const QuotaCommand& command);
int RunQuotaShow(const QuotaCommand& command);  // no directory, or a mount point: all quotas of that mount
int RunQuotaOff(const QuotaCommand& command);

// The quota that a path falls under. kNoData: under none.
Result<control::Quota> QuotaOf(const std::string& path);
std::string QuotaText(const control::Quota& quota);

}  // namespace cairnfs::tools
