#include "daemon/dedup.h"

#include <fmt/format.h>

namespace cairnfs::daemon {

const char* NameOf(meta::Dedup dedup) { return dedup == meta::Dedup::kOwner ? "owner" : "mount"; }

meta::Dedup ChosenDedup(const Config& config) {
  return config.dedup == NameOf(meta::Dedup::kOwner) ? meta::Dedup::kOwner : meta::Dedup::kMount;
}

Status CheckDedup(const Config& config, meta::Dedup made_with, const std::string& place) {
  if (config.dedup.empty() || ChosenDedup(config) == made_with) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("dedup = \"{}\" here, but the filesystem in {} was made with \"{}\", which cannot be "
                               "changed: leave dedup out, or make a new filesystem and copy the files there",
                               config.dedup, place, NameOf(made_with)));
}

}  // namespace cairnfs::daemon
