#include "cluster/holder_lists.h"

#include "base/coding.h"
#include "base/log.h"

namespace cairnfs::cluster {
namespace {

constexpr uint8_t kHolderListVersion = 1;

}  // namespace

std::string HolderKey(const Digest& digest) { return std::string(1, kHolderPrefix).append(digest.AsKey()); }

std::optional<Digest> ParseHolderKey(std::string_view key) {
  if (key.size() != 1 + Digest::kBytes || key[0] != kHolderPrefix) return std::nullopt;
  return Decoder(key.substr(1)).Id();
}

std::vector<const NodeInfo*> FindAll(const View& view, const Holders& holders) {
  std::vector<const NodeInfo*> nodes;
  for (const NodeId& holder : holders) {
    if (const NodeInfo* node = view.Find(holder)) nodes.push_back(node);
  }
  return nodes;
}

std::string EncodeHolders(const Holders& holders) {
  Encoder out;
  out.U8(kHolderListVersion).Varint(holders.size());
  for (const NodeId& holder : holders) out.Text(holder.AsKey());
  return out.Take();
}

Result<Holders> DecodeHolders(std::string_view value) {
  Decoder in(value);
  const uint8_t version = in.U8();
  const uint64_t count = in.Varint();
  if (!in.ok() || version != kHolderListVersion || count != in.remaining() / NodeId::kBytes) {
    return MakeError(ErrorCode::kCorrupt, "a list of a chunk's holders cannot be decoded");
  }
  Holders holders;
  for (uint64_t i = 0; i < count; ++i) {
    if (auto id = NodeId::FromKey(in.Text(NodeId::kBytes))) holders.push_back(*id);
  }
  if (!in.Finished()) return MakeError(ErrorCode::kCorrupt, "a list of a chunk's holders has bytes left over");
  return holders;
}

Result<std::optional<Holders>> ReadHolders(kv::KvEngine& engine, const Digest& digest) {
  CAIRNFS_ASSIGN_OR_RETURN(auto value, engine.Get(HolderKey(digest)));
  if (!value) return std::optional<Holders>{};
  auto holders = DecodeHolders(*value);
  if (!holders.ok()) return holders.error().WithContext("chunk " + digest.ToHex());
  return std::optional<Holders>{*std::move(holders)};
}

Result<std::vector<HolderEntry>> ScanHolders(kv::KvEngine& engine, const std::optional<Digest>& after, size_t limit) {
  std::string begin = after ? HolderKey(*after).append(1, '\0') : std::string(1, kHolderPrefix);
  std::vector<HolderEntry> entries;
  CAIRNFS_RETURN_IF_ERROR(
      engine.Scan(begin, std::string(1, kHolderPrefix + 1), nullptr, [&](std::string_view key, std::string_view value) {
        auto digest = ParseHolderKey(key);
        auto holders = DecodeHolders(value);
        if (digest && holders.ok()) {
          entries.push_back({*digest, *std::move(holders)});
        } else {
          spdlog::error("a list of a chunk's holders is not readable, and is skipped");
        }
        return entries.size() < limit;
      }));
  return entries;
}

Status VisitHolders(kv::KvEngine& engine, const std::function<void(const Digest&)>& visit) {
  return engine.Scan(std::string(1, kHolderPrefix), std::string(1, kHolderPrefix + 1), nullptr,
                     [&](std::string_view key, std::string_view) {
                       if (const auto digest = ParseHolderKey(key)) visit(*digest);
                       return true;
                     });
}

}  // namespace cairnfs::cluster
