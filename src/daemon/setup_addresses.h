// Addresses of a host that init or join sets up. Those that nobody named are chosen, and those that could not serve are
// refused before anything is made.
#pragma once

#include "base/result.h"
#include "daemon/config.h"

namespace cairnfs::daemon {

// Sets `listen` where it is empty: to the address that this machine has towards the metadata. kUnavailable.
Status ChooseListen(Config& config);
// Sets `serve_metadata`, from which others join, where init is to make its own server: the port after that of `listen`.
Status ChooseServed(Config& config);
// Sets `serve_join` where it is empty: the port after those of `listen` and `serve_metadata`.
Status ChooseServeJoin(Config& config);

// Checks that sockets of this host can have the addresses on which it listens, and that the advertised one can be
// looked up. Otherwise the first mount would fail, with the metadata and the data directory bound to a filesystem that
// nobody can use. kInvalidArgument. REQUIRES (unchecked): CheckCluster() succeeds.
Status CheckAddresses(const Config& config);

}  // namespace cairnfs::daemon
