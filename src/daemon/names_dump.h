// Dumps of the names of a filesystem, and loading one into an empty store: what `cairnfs metadata` does.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/context.h"
#include "base/result.h"
#include "daemon/config.h"
#include "kv/store.h"
#include "meta/dump.h"

namespace cairnfs::daemon {

// Writes what is durable in the store at one moment, and hands each entry to `keep`, if it is there, whose error ends
// the dump. kStale: the store has forgotten that moment meanwhile.
using KeepEntry = std::function<Status(std::string_view key, std::string_view value)>;
Status DumpNames(const Context& context, kv::KvStore& store, meta::DumpHead::Of of, const meta::DumpWriter::Sink& sink,
                 const KeepEntry& keep = {});

// The same without a daemon: of the store that `metadata` of the configuration names, or else of the data directory,
// which nobody holds. kBusy: somebody does. kInvalidArgument: its names are elsewhere.
Status DumpOffline(const Config& config, const meta::DumpWriter::Sink& sink);

// The bytes of a file. kNotFound and so on when it cannot be opened.
Result<meta::DumpSource> OpenDump(const std::string& path);
// Reads all of a dump, and says what it is. Errors as of meta::ReadDump.
Result<meta::DumpSummary> ReadDumpFile(const std::string& path);

struct LoadedNames {
  meta::DumpSummary dump;
  std::string where;                 // the store, as a configuration names it, or the data directory
  bool made_data_directory = false;  // which is a new node of the filesystem
};
// Loads a dump of a cluster: into the store that `metadata` names; or else into the data directory, of a host that is
// to serve the names: a new one, or one of that filesystem without names in it. Collections are held up afterwards.
// After an error other than kUnavailable nothing is changed that anybody sees. kAlreadyExists: there are names already.
// kCorrupt, kNotSupported: as of meta::ReadDump.
Result<LoadedNames> LoadNames(const std::string& path, const Config& config);

}  // namespace cairnfs::daemon
