// Reading all keys of one kind, a page at a time: each page holds at one revision, the whole does not.
#pragma once

#include <functional>
#include <string>

#include "kv/store.h"

namespace cairnfs::fs {

// Visits the entries whose keys begin with `prefix`, in key order, until `visit` gives false. kInterrupted once the
// context has expired; else the error of the store.
Status ScanPrefix(const Context& context, kv::KvStore& kv, const std::string& prefix,
                  const std::function<bool(const kv::KvEntry&)>& visit);

}  // namespace cairnfs::fs
