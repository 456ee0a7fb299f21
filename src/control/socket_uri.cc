#include "control/socket_uri.h"

#include <string_view>

namespace cairnfs::control {

std::string SocketUri(const std::string& path) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
  constexpr std::string_view kHexDigits = "0123456789ABCDEF";
  std::string uri = "unix:";
  for (char c : path) {
    if (kPlain.find(c) != std::string_view::npos) {
      uri += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    uri += {'%', kHexDigits[byte >> 4], kHexDigits[byte & 15]};
  }
  return uri;
}

std::string RankSocketPath(const std::string& control_socket_path) {
  return control_socket_path.substr(0, control_socket_path.rfind('/') + 1) + "ranks.sock";
}

}  // namespace cairnfs::control
