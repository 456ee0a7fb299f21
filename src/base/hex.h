// Bytes as text of two hex digits each.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace cairnfs {

std::string ToHex(std::string_view bytes);                 // lower case
std::optional<std::string> FromHex(std::string_view hex);  // either case; nullopt: odd, or not all are hex digits

}  // namespace cairnfs
