// JSON as the command line prints it.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>

namespace cairnfs::tools {

// The fields of a message by name, in the order of control.proto: those that are absent are left out, and those of a
// message that lies beside them (control.proto) stand among them.
nlohmann::ordered_json FieldsOf(const google::protobuf::Message& message);

// Names and messages may hold bytes that are no UTF-8.
std::string JsonText(const nlohmann::ordered_json& json);

}  // namespace cairnfs::tools
