#include "control/metrics.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <string>
#include <vector>

#include "base/types.h"

namespace cairnfs::control {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr uint64_t kToldBytes = 64 * kMiB;
constexpr uint64_t kToldOthers = 64;

uint64_t NumberIn(const Message& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: return reflection.GetBool(message, &field) ? 1 : 0;
    case FieldDescriptor::CPPTYPE_UINT32: return reflection.GetUInt32(message, &field);
    default: return reflection.GetUInt64(message, &field);  // it ends the program where the field is of another type
  }
}

// Of fields that make one metric together each adds to it; they follow each other.
void AddMetric(const FieldDescriptor& field, uint64_t value, bool is_exact, std::vector<MetricFamily>& families) {
  const MetricOptions& options = field.options().GetExtension(metric);
  if (options.rounded() && !is_exact) {
    value = AlignDown(value, field.name().find("bytes") != std::string::npos ? kToldBytes : kToldOthers);
  }
  const std::string name = "cairnfs_" + (options.name().empty() ? field.name() : options.name());
  const MetricType type = name.ends_with("_total") ? MetricType::Counter : MetricType::Gauge;
  ClientMetric metric;
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = static_cast<double>(value);
  if (!options.state().empty()) metric.label.push_back({"state", options.state()});
  if (families.empty() || families.back().name != name) families.push_back({name, options.help(), type, {}});
  families.back().metric.push_back(std::move(metric));
}

// Of the fields of a message and of those in it, as far as they are there.
void AddMetrics(const Message& message, bool is_exact, std::vector<MetricFamily>& families) {
  const auto& descriptor = *message.GetDescriptor();
  const auto& reflection = *message.GetReflection();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (field.is_repeated() || (field.has_presence() && !reflection.HasField(message, &field))) continue;
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      AddMetrics(reflection.GetMessage(message, &field), is_exact, families);
    } else if (field.options().HasExtension(metric)) {
      AddMetric(field, NumberIn(message, field), is_exact, families);
    }
  }
}

}  // namespace

std::string RenderMetrics(const StatusReply& status) {
  std::vector<MetricFamily> families;
  AddMetrics(status, status.dedup() == "owner", families);
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace cairnfs::control
