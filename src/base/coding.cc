#include "base/coding.h"

namespace cairnfs {
namespace {

template <typename T>
void AppendLittle(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); i++) out.push_back(static_cast<char>(value >> (8 * i)));
}

template <typename T>
T ReadLittle(std::string_view input) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); i++) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(static_cast<uint8_t>(input[i])) << (8 * i)));
  }
  return value;
}

}  // namespace

Encoder& Encoder::U8(uint8_t value) { return out_.push_back(static_cast<char>(value)), *this; }
Encoder& Encoder::U16(uint16_t value) { return AppendLittle(out_, value), *this; }
Encoder& Encoder::U32(uint32_t value) { return AppendLittle(out_, value), *this; }
Encoder& Encoder::U64(uint64_t value) { return AppendLittle(out_, value), *this; }

Encoder& Encoder::BigEndianU64(uint64_t value) {
  for (int shift = 56; shift >= 0; shift -= 8) out_.push_back(static_cast<char>(value >> shift));
  return *this;
}

Encoder& Encoder::Varint(uint64_t value) {
  while (value >= 0x80) {
    out_.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out_.push_back(static_cast<char>(value));
  return *this;
}

Encoder& Encoder::Bytes(ByteSpan bytes) { return out_.append(AsText(bytes)), *this; }
Encoder& Encoder::Text(std::string_view text) { return out_.append(text), *this; }
Encoder& Encoder::LengthPrefixed(std::string_view text) { return Varint(text.size()).Text(text); }
Encoder& Encoder::Id(const Digest& digest) { return out_.append(digest.AsKey()), *this; }
Encoder& Encoder::Time(const Timestamp& time) { return U64(static_cast<uint64_t>(time.seconds)).U32(time.nanoseconds); }

bool Decoder::Need(size_t size) {
  if (!ok_ || input_.size() < size) {
    ok_ = false;
    input_ = {};
    return false;
  }
  return true;
}

std::string_view Decoder::Text(size_t size) {
  if (!Need(size)) return {};
  std::string_view text = input_.substr(0, size);
  input_.remove_prefix(size);
  return text;
}

uint8_t Decoder::U8() {
  std::string_view raw = Text(1);
  return ok_ ? static_cast<uint8_t>(raw[0]) : 0;
}
uint16_t Decoder::U16() {
  std::string_view raw = Text(2);
  return ok_ ? ReadLittle<uint16_t>(raw) : 0;
}
uint32_t Decoder::U32() {
  std::string_view raw = Text(4);
  return ok_ ? ReadLittle<uint32_t>(raw) : 0;
}
uint64_t Decoder::U64() {
  std::string_view raw = Text(8);
  return ok_ ? ReadLittle<uint64_t>(raw) : 0;
}

uint64_t Decoder::BigEndianU64() {
  std::string_view raw = Text(8);
  uint64_t value = 0;
  for (char byte : raw) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

uint64_t Decoder::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    uint8_t byte = U8();
    if (!ok_) return 0;
    if (shift == 63 && byte > 1) break;  // would not fit 64 bits
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return value;
  }
  ok_ = false;
  input_ = {};
  return 0;
}

std::string_view Decoder::LengthPrefixed() {
  uint64_t size = Varint();
  return Text(size);
}

Digest Decoder::Id() {
  Digest digest;
  std::string_view raw = Text(Digest::kBytes);
  if (ok_) std::memcpy(digest.bytes.data(), raw.data(), Digest::kBytes);
  return digest;
}

Timestamp Decoder::Time() {
  Timestamp time{static_cast<int64_t>(U64()), U32()};
  if (time.nanoseconds >= 1'000'000'000) {
    ok_ = false;
    input_ = {};
    return {};
  }
  return time;
}

std::string_view Decoder::Rest() { return Text(input_.size()); }

}  // namespace cairnfs
