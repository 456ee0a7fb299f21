#include "base/types.h"

namespace cairnfs {

std::string Digest::ToHex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(kBytes * 2);
  for (std::byte value : bytes) {
    text.push_back(kDigits[std::to_integer<unsigned>(value) >> 4]);
    text.push_back(kDigits[std::to_integer<unsigned>(value) & 15]);
  }
  return text;
}

}  // namespace cairnfs
