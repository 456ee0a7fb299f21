// JSON as the command line prints it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace cairnfs::tools {

// Names and messages may hold bytes that are no UTF-8.
inline std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace cairnfs::tools
