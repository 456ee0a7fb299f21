#include "base/printable.h"

#include <fmt/format.h>

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

}  // namespace cairnfs
