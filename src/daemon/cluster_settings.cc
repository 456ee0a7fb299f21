#include "daemon/cluster_settings.h"

#include <fmt/format.h>

#include <array>
#include <chrono>

#include "base/coding.h"
#include "base/log.h"
#include "daemon/setup_config.h"
#include "daemon/size_text.h"
#include "meta/records.h"

namespace cairnfs::daemon {
namespace {

constexpr uint8_t kSettingsVersion = 1;
constexpr std::chrono::seconds kReadAgainAfter{1};

std::string SettingsEnd() { return SettingsKey() + '\0'; }

Error NoSettings() { return MakeError(ErrorCode::kNotFound, "the metadata has no settings of a cluster"); }

Result<StoredSettings> DecodeStored(std::string_view value, uint64_t revision) {
  CAIRNFS_ASSIGN_OR_RETURN(ClusterSettings settings, ClusterSettings::Decode(value));
  return StoredSettings{std::move(settings), revision};
}

}  // namespace

std::string ClusterSettings::Encode() const {
  Encoder encoder;
  encoder.U8(kSettingsVersion).U32(copies).U32(min_replicas).U64(lease_ms).U64(out_after_ms);
  encoder.Varint(trusted_network.size());
  for (const std::string& network : trusted_network) encoder.LengthPrefixed(network);
  return encoder.Take();
}

Result<ClusterSettings> ClusterSettings::Decode(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8();
  ClusterSettings settings;
  settings.copies = decoder.U32();
  settings.min_replicas = decoder.U32();
  settings.lease_ms = decoder.U64();
  settings.out_after_ms = decoder.U64();
  for (uint64_t left = decoder.Varint(); left > 0 && decoder.ok(); --left) {
    settings.trusted_network.emplace_back(decoder.LengthPrefixed());
  }
  if (decoder.Finished() && version == kSettingsVersion) return settings;
  return MakeError(ErrorCode::kCorrupt, "the settings of the cluster in its metadata do not decode");
}

ClusterSettings SettingsOf(const Config& config) {
  return {static_cast<uint32_t>(config.copies), static_cast<uint32_t>(config.min_replicas), config.lease_ms,
          config.out_after_ms, config.trusted_network};
}

Status CheckAgreement(const ClusterSettings& settings, const Config& config) {
  if (config.trusted_network.empty() != settings.trusted_network.empty()) {
    return InvalidArgument(
        config.trusted_network.empty()
            ? "trusted_network is empty here, but the cluster was made without certificates: take "
              "trusted_network from another host's configuration"
            : "trusted_network is set here, but the nodes of the cluster have certificates: leave it out");
  }
  struct Pair {
    std::string_view key;
    std::string here, there;
  };
  const std::array pairs = {
      Pair{"copies", fmt::format("{}", config.copies), fmt::format("{}", settings.copies)},
      Pair{"lease", QuotedText(FormatDurationMs(config.lease_ms)), QuotedText(FormatDurationMs(settings.lease_ms))},
      Pair{"out_after", QuotedText(FormatDurationMs(config.out_after_ms)),
           QuotedText(FormatDurationMs(settings.out_after_ms))},
  };
  for (const Pair& pair : pairs) {
    if (pair.here == pair.there) continue;
    return InvalidArgument(
        fmt::format("{} = {} here, but the cluster was made with {}: it must be the same on every host", pair.key,
                    pair.here, pair.there));
  }
  return {};
}

std::string SettingsKey() { return meta::ClusterSettingsKey(); }

kv::RetryOptions SettingsConflicts() {
  kv::RetryOptions options;
  options.give_up_after = std::chrono::seconds(20);
  options.wait_min = std::chrono::milliseconds(1);
  options.wait_max = std::chrono::milliseconds(100);
  return options;
}

Result<StoredSettings> ReadSettings(const Context& context, kv::KvStore& store) {
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, store.Get(context, SettingsKey()));
  if (!entry) return NoSettings();
  return DecodeStored(entry->value, entry->revision);
}

Result<StoredSettings> SetMinReplicas(const Context& context, kv::KvStore& store, uint32_t min_replicas) {
  kv::Retry retry(context, SettingsConflicts());
  while (true) {
    CAIRNFS_ASSIGN_OR_RETURN(StoredSettings stored, ReadSettings(context, store));
    // The metadata may have been away for longer than anybody waited.
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "nobody waits for the setting any more");
    if (min_replicas > stored.settings.copies) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          fmt::format("min_replicas = {} is more than copies = {}: give 1 to {}, or default for all copies",
                      min_replicas, stored.settings.copies, stored.settings.copies));
    }
    if (stored.settings.min_replicas == min_replicas) return stored;
    stored.settings.min_replicas = min_replicas;
    kv::Transaction transaction;
    transaction.IfRevision(SettingsKey(), stored.revision).Put(SettingsKey(), stored.settings.Encode());
    auto committed = store.Commit(context, transaction);
    if (committed.ok()) return StoredSettings{std::move(stored.settings), *committed};
    if (committed.error().code != ErrorCode::kConflict || !retry.Wait()) return committed.error();
  }
}

Result<std::unique_ptr<SettingsWatch>> SettingsWatch::Start(kv::SharedKvStore& store, Changed changed) {
  auto watch = std::unique_ptr<SettingsWatch>(new SettingsWatch(store, std::move(changed)));
  CAIRNFS_RETURN_IF_ERROR(watch->Begin());
  return watch;
}

Status SettingsWatch::Begin() {
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvRange range, store_.Range(context_, SettingsKey(), SettingsEnd(), 1));
  if (range.entries.empty()) return NoSettings();
  CAIRNFS_ASSIGN_OR_RETURN(StoredSettings stored,
                           DecodeStored(range.entries.front().value, range.entries.front().revision));
  Take(stored, 0);
  kv::WatchCallbacks callbacks;
  callbacks.changed = [this](const std::vector<kv::KvEvent>& events, uint64_t) { TakeEvents(events); };
  callbacks.lost = [this](uint64_t) { Reread(Revisions::kGoOn); };
  callbacks.went_back = [this](uint64_t) { Reread(Revisions::kWentBack); };
  CAIRNFS_ASSIGN_OR_RETURN(watch_,
                           store_.Watch(context_, SettingsKey(), SettingsEnd(), range.revision, std::move(callbacks)));
  return {};
}

SettingsWatch::~SettingsWatch() {
  stop_.request_stop();
  watch_.reset();
}

uint64_t SettingsWatch::TimesWentBack() const {
  MutexLock lock(mutex_);
  return times_went_back_;
}

void SettingsWatch::Take(const StoredSettings& stored, uint64_t times_went_back) {
  MutexLock lock(mutex_);
  if (times_went_back == times_went_back_) TakeLocked(stored);
}

void SettingsWatch::TakeLocked(const StoredSettings& stored) {
  if (stored.revision <= revision_) return;
  revision_ = stored.revision;
  changed_(stored);
}

void SettingsWatch::TakeEvents(const std::vector<kv::KvEvent>& events) {
  for (const kv::KvEvent& event : events) {
    auto stored = event.value ? DecodeStored(*event.value, event.revision) : NoSettings();
    if (stored.ok()) {
      MutexLock lock(mutex_);
      TakeLocked(*stored);
    } else {
      spdlog::error("the settings of the cluster stay as they are on this host: {}", stored.error().message);
    }
  }
}

// Runs on the watch's thread, which tells nothing else before this.
void SettingsWatch::Reread(Revisions revisions) {
  for (bool is_told = false;;) {
    auto stored = ReadSettings(context_, store_);
    if (stored.ok()) {
      MutexLock lock(mutex_);
      if (revisions == Revisions::kWentBack) {  // revisions may mean something else now
        revision_ = 0;
        ++times_went_back_;
      }
      return TakeLocked(*stored);
    }
    if (!is_told) spdlog::warn("cannot read the settings of the cluster yet: {}", stored.error().message);
    is_told = true;
    if (!context_.Sleep(kReadAgainAfter)) return;
  }
}

}  // namespace cairnfs::daemon
