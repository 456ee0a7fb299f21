#include "kv/sync_mark.h"

#include <rocksdb/env.h>

#include <array>

#include "base/coding.h"
#include "kv/rocks_support.h"

namespace cairnfs::kv {
namespace {

constexpr std::string_view kMagic = "CairnKV1";

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = MakeCrcTable();

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (char byte : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

std::string SyncMarkRecord::Encode() const {
  std::string text =
      Encoder().Text(kMagic).U64(sequence).U64(manifest_number).U64(manifest_bytes).U32(manifest_crc32c).U64(0).Take();
  return text + Encoder().U32(Crc32c(text)).Take();
}

std::optional<SyncMarkRecord> SyncMarkRecord::Decode(std::string_view text) {
  if (text.size() != kBytes) return std::nullopt;
  Decoder decoder(text);
  if (decoder.Text(kMagic.size()) != kMagic) return std::nullopt;
  SyncMarkRecord record;
  record.sequence = decoder.U64();
  record.manifest_number = decoder.U64();
  record.manifest_bytes = decoder.U64();
  record.manifest_crc32c = decoder.U32();
  decoder.U64();
  uint32_t crc = decoder.U32();
  if (!decoder.Finished() || crc != Crc32c(text.substr(0, kBytes - sizeof crc))) return std::nullopt;
  return record;
}

SyncMark::SyncMark() = default;
SyncMark::~SyncMark() = default;

std::optional<SyncMarkRecord> SyncMark::Read(const std::string& directory) {
  std::string text;
  if (!rocksdb::ReadFileToString(rocksdb::Env::Default(), directory + "/" + kFileName, &text).ok()) return std::nullopt;
  return SyncMarkRecord::Decode(text);
}

Status SyncMark::Open(const std::string& directory) {
  rocksdb::Env* env = rocksdb::Env::Default();
  const std::string path = directory + "/" + kFileName;
  MutexLock lock(mutex_);
  if (std::optional<SyncMarkRecord> old = Read(directory)) {
    record_ = *old;
  } else {
    record_ = {};
    rocksdb::Status status = rocksdb::WriteStringToFile(env, record_.Encode(), path, /*should_sync=*/true);
    std::unique_ptr<rocksdb::Directory> handle;
    if (status.ok()) status = env->NewDirectory(directory, &handle);
    if (status.ok()) status = handle->Fsync();
    if (!status.ok()) return ToError(status, path);
  }
  rocksdb::Status status = env->NewRandomRWFile(path, &file_, rocksdb::EnvOptions());
  if (!status.ok()) return ToError(status, path);
  return {};
}

void SyncMark::RaiseSequence(uint64_t sequence) {
  MutexLock lock(mutex_);
  if (file_ == nullptr || sequence <= record_.sequence) return;
  record_.sequence = sequence;
  WriteRecord();
}

void SyncMark::SetManifest(uint64_t number, uint64_t bytes, uint32_t crc32c) {
  MutexLock lock(mutex_);
  if (file_ == nullptr || number < record_.manifest_number) return;
  if (number == record_.manifest_number && bytes <= record_.manifest_bytes) return;
  record_.manifest_number = number;
  record_.manifest_bytes = bytes;
  record_.manifest_crc32c = crc32c;
  WriteRecord();
}

void SyncMark::WriteRecord() { file_->Write(0, record_.Encode()).PermitUncheckedError(); }

}  // namespace cairnfs::kv
