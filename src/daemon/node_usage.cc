#include "daemon/node_usage.h"

#include <algorithm>
#include <bit>
#include <chrono>

#include "base/clock.h"
#include "base/coding.h"
#include "base/context.h"
#include "base/log.h"

namespace cairnfs::daemon {
namespace {

constexpr std::string_view kUsagePrefix = "U";
constexpr uint8_t kVersion = 1;
constexpr auto kSampleInterval = std::chrono::seconds(2);
// All nodes together write no more often than this many times a second.
constexpr size_t kWritesPerSecondMax = 20;

std::string UsageKey(const cluster::NodeId& id) { return std::string(kUsagePrefix) + std::string(id.AsKey()); }

double DoubleOf(uint64_t bits) { return std::bit_cast<double>(bits); }
uint64_t BitsOf(double value) { return std::bit_cast<uint64_t>(value); }

}  // namespace

std::string EncodeUsage(const NodeUsage& usage) {
  const control::UsageMessage& told = usage.told;
  return Encoder()
      .U8(kVersion)
      .U64(told.total_bytes())
      .U64(told.available_bytes())
      .U64(told.stored_bytes())
      .U64(told.missing_copies())
      .U64(told.unacknowledged_bytes())
      .LengthPrefixed(told.repair_phase())
      .U64(told.repair_chunks_left())
      .U64(BitsOf(told.repair_bytes_per_second()))
      .U64(BitsOf(told.repair_chunks_per_second()))
      .U64(usage.session_began_seconds)
      .Take();
}

Result<NodeUsage> DecodeUsage(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8();
  NodeUsage usage;
  control::UsageMessage& told = usage.told;
  told.set_total_bytes(decoder.U64());
  told.set_available_bytes(decoder.U64());
  told.set_stored_bytes(decoder.U64());
  told.set_missing_copies(decoder.U64());
  told.set_unacknowledged_bytes(decoder.U64());
  told.set_repair_phase(std::string(decoder.LengthPrefixed()));
  told.set_repair_chunks_left(decoder.U64());
  told.set_repair_bytes_per_second(DoubleOf(decoder.U64()));
  told.set_repair_chunks_per_second(DoubleOf(decoder.U64()));
  usage.session_began_seconds = decoder.U64();
  if (decoder.Finished() && version == kVersion) return usage;
  return MakeError(ErrorCode::kCorrupt, "what a node told of itself does not decode");
}

Result<std::map<cluster::NodeId, NodeUsage>> ReadUsage(const Context& context, kv::KvStore& store) {
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvRange range, store.Range(context, kUsagePrefix, kv::PrefixEnd(kUsagePrefix), 0));
  std::map<cluster::NodeId, NodeUsage> usages;
  for (const kv::KvEntry& entry : range.entries) {
    const auto id = cluster::NodeId::FromKey(std::string_view(entry.key).substr(kUsagePrefix.size()));
    auto usage = DecodeUsage(entry.value);
    if (id && usage.ok()) usages[*id] = *std::move(usage);
  }
  return usages;
}

UsagePublisher::UsagePublisher(kv::KvStore& store, cluster::Membership& membership, std::function<Sample()> sample,
                               Housekeep housekeep)
    : store_(store),
      membership_(membership),
      sample_(std::move(sample)),
      housekeep_(std::move(housekeep)),
      thread_([this](std::stop_token stop) { Run(Context(std::move(stop))); }) {}

UsagePublisher::~UsagePublisher() = default;

void UsagePublisher::Run(const Context& context) {
  Sample last = sample_();
  Clock::time_point last_time = Clock::Now(), published{};
  while (!context.IsStopped()) {
    Sample now = sample_();
    const Clock::time_point time = Clock::Now();
    const double seconds = std::max(0.5, std::chrono::duration<double>(time - last_time).count());
    control::UsageMessage& told = now.usage.told;
    if (const uint64_t left = last.usage.told.repair_chunks_left(); left > told.repair_chunks_left()) {
      told.set_repair_chunks_per_second(static_cast<double>(left - told.repair_chunks_left()) / seconds);
    }
    const uint64_t repaired = now.repair_bytes_total - std::min(last.repair_bytes_total, now.repair_bytes_total);
    told.set_repair_bytes_per_second(static_cast<double>(repaired) / seconds);
    last = now;
    last_time = time;
    const auto view = membership_.view();
    if (time - published >= std::chrono::seconds(view->nodes.size() / kWritesPerSecondMax)) {
      Publish(context, now.usage);
      published = time;
    }
    const cluster::NodeInfo* first = view->FirstUp();
    const bool is_first = first != nullptr && first->id == membership_.self();
    housekeep_(context, is_first ? kvnet::Compacts::kYes : kvnet::Compacts::kNo);
    static_cast<void>(context.Sleep(kSampleInterval));
  }
}

// A node whose session is not certain keeps quiet; the others show it without usage.
void UsagePublisher::Publish(const Context& context, const NodeUsage& usage) {
  auto session = membership_.session();
  if (!session.ok() || !membership_.LeaseHolds()) return;
  std::string value = EncodeUsage(usage);
  if (value == published_ && session->revision == published_session_) return;
  kv::Transaction transaction;
  transaction.writes.push_back({UsageKey(membership_.self()), value, session->lease});
  if (auto written = store_.Commit(context, transaction); !written.ok()) {
    spdlog::debug("cannot tell the others of this node's usage: {}", written.error().message);
    return;
  }
  published_ = std::move(value);
  published_session_ = session->revision;
}

}  // namespace cairnfs::daemon
