// The byte encodings of keys and values.
//
// Values are little-endian fixed-width integers and LEB128 varints; keys hold big-endian integers so that
// byte order is number order. A Decoder never reads past its input and never throws: the first short or
// malformed read makes it fail, and every later read returns zero.
#pragma once

#include <string>
#include <string_view>

#include "base/types.h"

namespace cairnfs {

class Encoder {
 public:
  Encoder& U8(uint8_t value);
  Encoder& U16(uint16_t value);
  Encoder& U32(uint32_t value);
  Encoder& U64(uint64_t value);
  Encoder& BigEndianU64(uint64_t value);
  Encoder& Varint(uint64_t value);
  Encoder& Bytes(ByteSpan bytes);                  // the bytes alone
  Encoder& Text(std::string_view text);            // the bytes alone
  Encoder& LengthPrefixed(std::string_view text);  // varint length, then the bytes
  Encoder& Id(const Digest& digest);
  Encoder& Time(const Timestamp& time);  // s64 seconds, u32 nanoseconds
  size_t size() const { return out_.size(); }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

class Decoder {
 public:
  explicit Decoder(std::string_view input) : input_(input) {}
  uint8_t U8();
  uint16_t U16();
  uint32_t U32();
  uint64_t U64();
  uint64_t BigEndianU64();
  uint64_t Varint();
  std::string_view Text(size_t size);
  std::string_view LengthPrefixed();
  Digest Id();
  Timestamp Time();  // fails on nanoseconds >= 10^9
  std::string_view Rest();

  bool ok() const { return ok_; }
  // True when nothing failed and the whole input was consumed.
  bool Finished() const { return ok_ && input_.empty(); }
  size_t remaining() const { return input_.size(); }

 private:
  bool Need(size_t size);
  std::string_view input_;
  bool ok_ = true;
};

}  // namespace cairnfs
