#include "kv/openings.h"

#include <random>

#include "base/coding.h"
#include "kv/local_store_format.h"

namespace cairnfs::kv {
namespace {

uint64_t RandomId() {
  std::random_device device;
  const uint64_t random = uint64_t{device()} << 32 | device();
  return random == 0 ? 1 : random;
}

}  // namespace

Result<Openings> Openings::Read(KvEngine& engine, const EngineSnapshot* snapshot) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::optional<std::string> text, engine.Get(kOpeningsKey, snapshot));
  Openings result;
  Decoder decoder(text ? std::string_view(*text) : std::string_view());
  while (decoder.ok() && decoder.remaining() > 0) {
    const uint64_t id = decoder.U64();
    result.openings_.push_back({id, decoder.U64()});
  }
  if (!decoder.ok()) return MakeError(ErrorCode::kCorrupt, "the record of the store's openings (key 'O') is cut short");
  return result;
}

Result<Openings> Openings::Begin(KvEngine& engine, uint64_t revision, StoreLog* log) {
  CAIRNFS_ASSIGN_OR_RETURN(Openings result, Read(engine));
  const uint64_t before = result.current();
  result.openings_.push_back({RandomId(), revision});
  if (result.openings_.size() > kKept) result.openings_.erase(result.openings_.begin());
  Encoder encoder;
  for (const Opening& opening : result.openings_) encoder.U64(opening.id).U64(opening.revision);
  LogEntry entry{
      {before, revision}, {result.current(), revision}, {EngineWrite{std::string(kOpeningsKey), encoder.Take()}}};
  if (log != nullptr) CAIRNFS_RETURN_IF_ERROR(log->BeforeWrite(entry));
  const Status written = engine.Write(entry.writes, WriteMode::kSynced);
  if (!written.ok() && log != nullptr) CAIRNFS_RETURN_IF_ERROR(log->WriteFailed());
  CAIRNFS_RETURN_IF_ERROR(written);
  return result;
}

bool Openings::Contain(uint64_t id, uint64_t revision) const {
  for (size_t i = 0; i < openings_.size(); ++i) {
    // The revisions of an opening end where the next one begins.
    if (openings_[i].id == id) return i + 1 == openings_.size() || revision <= openings_[i + 1].revision;
  }
  return false;
}

}  // namespace cairnfs::kv
