#include "control/metrics.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <string>
#include <utility>
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

// How the fields of a message become metrics.
struct Rules {
  bool is_exact = false;
  std::vector<ClientMetric::Label> labels = {};
};

double NumberIn(const Message& message, const FieldDescriptor& field, const Rules& rules) {
  const auto& reflection = *message.GetReflection();
  uint64_t value = 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: value = reflection.GetBool(message, &field) ? 1 : 0; break;
    case FieldDescriptor::CPPTYPE_UINT32: value = reflection.GetUInt32(message, &field); break;
    default: value = reflection.GetUInt64(message, &field);  // it ends the program where the field is of another type
  }
  if (field.options().GetExtension(metric).rounded() && !rules.is_exact) {
    value = AlignDown(value, field.name().find("bytes") != std::string::npos ? kToldBytes : kToldOthers);
  }
  return static_cast<double>(value);
}

ClientMetric::Histogram HistogramOf(const Durations& durations) {
  ClientMetric::Histogram histogram;
  histogram.sample_count = durations.count();
  histogram.sample_sum = durations.sum_seconds();
  uint64_t count = 0;
  for (const Bucket& bucket : durations.buckets()) {
    count += bucket.count();
    histogram.bucket.push_back({count, bucket.seconds_max()});
  }
  return histogram;
}

// The metrics of one name stand together.
MetricFamily& FamilyOf(const std::string& name, const std::string& help, MetricType type,
                       std::vector<MetricFamily>& families) {
  const auto found =
      std::find_if(families.begin(), families.end(), [&](const MetricFamily& family) { return family.name == name; });
  if (found != families.end()) return *found;
  return families.emplace_back(MetricFamily{name, help, type, {}});
}

// Of fields that make one metric together each adds to it.
void AddMetric(const Message& message, const FieldDescriptor& field, const Rules& rules,
               std::vector<MetricFamily>& families) {
  const MetricOptions& options = field.options().GetExtension(metric);
  if (options.hidden() && !rules.is_exact) return;
  const std::string name = "cairnfs_" + (options.name().empty() ? field.name() : options.name());
  ClientMetric metric;
  metric.label = rules.labels;
  if (!options.state().empty()) metric.label.push_back({"state", options.state()});
  MetricType type = name.ends_with("_total") ? MetricType::Counter : MetricType::Gauge;
  if (field.message_type() == Durations::descriptor()) {
    type = MetricType::Histogram;
    metric.histogram = HistogramOf(static_cast<const Durations&>(message.GetReflection()->GetMessage(message, &field)));
  } else {
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = NumberIn(message, field, rules);
  }
  FamilyOf(name, options.help(), type, families).metric.push_back(std::move(metric));
}

// Of the fields of a message and of those in it, as far as they are there.
void AddMetrics(const Message& message, Rules rules, std::vector<MetricFamily>& families) {
  const auto& descriptor = *message.GetDescriptor();
  const auto& reflection = *message.GetReflection();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    const bool is_message = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (field.is_repeated()) {
      for (int j = 0; is_message && j < reflection.FieldSize(message, &field); ++j) {
        AddMetrics(reflection.GetRepeatedMessage(message, &field, j), rules, families);
      }
    } else if (field.has_presence() && !reflection.HasField(message, &field)) {
      continue;
    } else if (field.options().GetExtension(label)) {
      rules.labels.push_back({field.name(), reflection.GetString(message, &field)});
    } else if (field.options().HasExtension(metric)) {
      AddMetric(message, field, rules, families);
    } else if (is_message) {
      AddMetrics(reflection.GetMessage(message, &field), rules, families);
    }
  }
}

}  // namespace

std::string RenderMetrics(const StatusReply& status) {
  std::vector<MetricFamily> families;
  AddMetrics(status, {.is_exact = status.dedup() == "owner"}, families);
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace cairnfs::control
