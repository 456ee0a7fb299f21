// Metrics for Prometheus over HTTP, at /metrics. Off unless an address is configured.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "control/report.h"

namespace cairnfs::control {

// What a scrape gets: the text format of Prometheus.
std::string RenderMetrics(const StatusReport& report);

class Metrics {
 public:
  // Serves what `report` gives at each scrape. kIo when the address ("host:port") cannot be listened on.
  static Result<std::unique_ptr<Metrics>> Start(const std::string& address, std::function<StatusReport()> report);
  ~Metrics();

 private:
  class Impl;
  explicit Metrics(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairnfs::control
