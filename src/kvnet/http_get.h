// One GET over HTTP, plain or with TLS: what a server of gRPC tells beside it, as etcd its metrics.
#pragma once

#include <string>

#include "base/context.h"
#include "base/result.h"
#include "rpc/tls.h"

namespace cairnfs::kvnet {

inline constexpr size_t kHttpBytesMax = 4 << 20;  // of an answer

// The body of what the server at `address` (HOST:PORT) answers to GET `path`. With `tls` it speaks TLS, and proves
// itself by the same files as for calls: its certificate must be of the authority and name the host of the address.
// kUnavailable: the context expired first, or it answered otherwise than by "200" and kHttpBytesMax at most; no
// redirect is followed. Any thread; it blocks.
Result<std::string> HttpGet(const Context& context, const std::string& address, const std::string& path,
                            const rpc::Tls& tls);

}  // namespace cairnfs::kvnet
