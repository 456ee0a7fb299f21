// What a host that joins and the one that lets it join say to each other. docs/formats/joining.md has the tables.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "admission/token.h"
#include "base/result.h"

namespace cairnfs::admission {

inline constexpr uint8_t kJoinVersion = 1;

struct JoinHello {
  Secret secret{};
  std::string Encode() const;
  // kNotSupported: the host that joins speaks another version. kInvalidArgument: malformed; for those below too.
  static Result<JoinHello> Decode(std::string_view message);
};

// What a host needs to know before it has a certificate.
struct JoinWelcome {
  std::string filesystem;  // uuid, in hex
  std::string metadata;    // where the names are, as its configuration says it
  std::string settings;    // of the cluster, as the shared store has them
  std::string Encode() const;
  static Result<JoinWelcome> Decode(std::string_view message);
};

struct JoinRequest {
  std::string node;         // the id, in hex
  std::string name;         // for people
  std::string address;      // at which other nodes will reach it
  std::string certificate;  // a request for one
  NodeProof proof;          // over that request, of a host that was this node before
  std::string Encode() const;
  static Result<JoinRequest> Decode(std::string_view message);
};

struct JoinGrant {
  std::string authority, chain;
  std::string Encode() const;
  static Result<JoinGrant> Decode(std::string_view message);
};

// An answer: a message, or an error with its code and message.
std::string EncodeAnswer(const Result<std::string>& answer);
Result<std::string> DecodeAnswer(std::string_view bytes);

}  // namespace cairnfs::admission
