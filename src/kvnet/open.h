// The store that a configuration names.
#pragma once

#include <memory>
#include <string>

#include "kv/shared_store.h"
#include "kvnet/options.h"

namespace cairnfs::kvnet {

// `text` is a StoreAddress. Connects when the store is used. kInvalidArgument says what is wrong and what would be
// right.
Result<std::unique_ptr<kv::SharedKvStore>> OpenSharedStore(const std::string& text, const RemoteOptions& options = {});

}  // namespace cairnfs::kvnet
