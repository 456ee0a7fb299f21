#include "base/printable.h"

#include <fmt/format.h>

#include <cstdint>

namespace cairnfs {
namespace {

constexpr unsigned char kDelete = 0x7f;
constexpr unsigned char kLeadOfControls = 0xc2;  // in UTF-8, of U+0080 to U+00BF

unsigned char ByteAt(std::string_view text, size_t at) {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
}

// How many bytes of a control character begin at `at`.
size_t ControlBytesAt(std::string_view text, size_t at) {
  const unsigned char byte = ByteAt(text, at), next = ByteAt(text, at + 1);
  if (byte < ' ' || byte == kDelete) return 1;
  return byte == kLeadOfControls && next >= 0x80 && next <= 0x9f ? 2 : 0;
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string printable;
  printable.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t escaped = ControlBytesAt(text, at);
    for (size_t i = 0; i < escaped; ++i) printable += fmt::format("\\x{:02x}", ByteAt(text, at + i));
    if (escaped == 0) printable += text[at];
    at += escaped > 0 ? escaped : 1;
  }
  return printable;
}

std::string PrintableAscii(std::string_view text) {
  std::string printable;
  printable.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    printable += byte >= ' ' && byte < kDelete ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return printable;
}

bool IsPlainText(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x20 || lead == 0x7f || (lead >= 0x80 && lead < 0xc2) || lead > 0xf4) return false;
    const int more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    uint32_t code = more == 0 ? lead : lead & (0x3fU >> more);
    for (int left = more; left > 0; --left, ++i) {
      if (i == text.size() || (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return false;
      code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3f);
    }
    const bool is_overlong = (more == 2 && code < 0x800) || (more == 3 && code < 0x10000);
    if (is_overlong || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return false;
  }
  return true;
}

}  // namespace cairnfs
