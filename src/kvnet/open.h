// The store that a configuration names.
#pragma once

#include <memory>
#include <string>

#include "kv/shared_store.h"
#include "kvnet/options.h"

namespace cairnfs::kvnet {

// `text`: "node:HOST:PORT", or "etcd://HOST:PORT,HOST:PORT,...[/PREFIX]" (the prefix is /cairnfs/ if none is given, and
// is made to begin and end with '/'). Connects when the store is used. kInvalidArgument says what is wrong and what
// would be right.
Result<std::unique_ptr<kv::SharedKvStore>> OpenSharedStore(const std::string& text, const RemoteOptions& options = {});

}  // namespace cairnfs::kvnet
