#include "json_text.h"

#include <google/protobuf/descriptor.h>

#include "control.pb.h"

namespace cairnfs::tools {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The library ends the program where a field is of a type that is not asked for here.
nlohmann::ordered_json ValueIn(const Message& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: return reflection.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32: return reflection.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64: return reflection.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_INT64: return reflection.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE: return reflection.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_MESSAGE: return FieldsOf(reflection.GetMessage(message, &field));
    default: return reflection.GetString(message, &field);
  }
}

nlohmann::ordered_json ArrayIn(const Message& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  auto array = nlohmann::ordered_json::array();
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      array.push_back(FieldsOf(reflection.GetRepeatedMessage(message, &field, i)));
    } else {
      array.push_back(reflection.GetRepeatedString(message, &field, i));
    }
  }
  return array;
}

}  // namespace

nlohmann::ordered_json FieldsOf(const Message& message) {
  auto json = nlohmann::ordered_json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (field.is_repeated()) {
      json[field.name()] = ArrayIn(message, field);
    } else if (field.has_presence() && !message.GetReflection()->HasField(message, &field)) {
      continue;
    } else if (field.options().GetExtension(control::beside)) {
      json.update(ValueIn(message, field));
    } else {
      json[field.name()] = ValueIn(message, field);
    }
  }
  return json;
}

std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace cairnfs::tools
