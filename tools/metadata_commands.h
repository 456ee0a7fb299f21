// `cairnfs metadata`: the names and records of a filesystem in a file. docs/formats/dump.md.
#pragma once

#include <string>

#include "locate.h"

namespace cairnfs::tools {

struct MetadataCommand {
  std::string file;
  Target target;         // whose daemon writes the dump; of a load, the data directory that takes it
  std::string metadata;  // the store itself, as a configuration names it; empty: none is given
  bool json = false;
};

int RunMetadataDump(const MetadataCommand& command);
int RunMetadataLoad(const MetadataCommand& command);
int RunMetadataShow(const MetadataCommand& command);

}  // namespace cairnfs::tools
