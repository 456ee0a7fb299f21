// Metrics for Prometheus over HTTP, at /metrics. Off unless an address is configured.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "control.pb.h"

namespace cairnfs::control {

// What a scrape gets, in the text format of Prometheus: the fields that control.proto marks as metrics.
std::string RenderMetrics(const StatusReply& status);

class Metrics {
 public:
  // Serves what `status` gives at each scrape. kIo when the address ("host:port") cannot be listened on.
  static Result<std::unique_ptr<Metrics>> Start(const std::string& address, std::function<StatusReply()> status);
  ~Metrics();

 private:
  class Impl;
  explicit Metrics(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairnfs::control
