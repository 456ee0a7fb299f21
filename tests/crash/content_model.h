// The bytes of one file along its history.
#pragma once

#include <string>

#include "history.h"

namespace cairnfs::testing {

// REQUIRES: IsData(record.step).
void ApplyData(const Record& record, std::string& content);

}  // namespace cairnfs::testing
