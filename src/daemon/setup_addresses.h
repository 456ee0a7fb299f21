// Addresses of a host that init or join sets up: those that nobody named are chosen, and those that could not serve it
// are refused before anything is made.
#pragma once

#include "base/result.h"
#include "daemon/config.h"

namespace cairnfs::daemon {

// Sets `listen` where it is empty: to the address that this machine has towards the metadata. kUnavailable.
Status ChooseListen(Config& config);
// Sets `serve_metadata`, from which others join, where init is to make its own server: the port after that of `listen`.
Status ChooseServed(Config& config);

// That sockets of this host can have those on which it listens, and that the one it advertises can be looked up. The
// first mount would fail, and until then the metadata and the data directory be bound to a filesystem that nobody can
// use. kInvalidArgument. REQUIRES: CheckCluster() is content.
Status CheckAddresses(const Config& config);

}  // namespace cairnfs::daemon
