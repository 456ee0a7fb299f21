// `cairnfs metadata`: the names and records of a filesystem in a file. docs/formats/dump.md.
#pragma once

#include <string>

#include "locate.h"

namespace cairnfs::tools {

struct MetadataCommand {
  std::string file;
  Target target;            // whose daemon writes the dump; of a load, the data directory that takes it
  std::string metadata;     // the store itself, as a configuration names it; empty: none is given
  std::string hold;         // of a dump: for how long its chunks stay, as "7d"; empty: they are not held
  uint64_t hold_id = 0;     // which one is released
  std::string node;         // that is to be the standby
  bool no_standby = false;  // there is to be none
  bool lose = false;        // of a promotion: also where names are lost
  bool json = false;
};

int RunMetadataDump(const MetadataCommand& command);
int RunMetadataLoad(const MetadataCommand& command);
int RunMetadataShow(const MetadataCommand& command);
int RunMetadataHolds(const MetadataCommand& command);
int RunMetadataRelease(const MetadataCommand& command);
int RunMetadataStandby(const MetadataCommand& command);
int RunMetadataPromote(const MetadataCommand& command);

}  // namespace cairnfs::tools
