// Tokens: with one, a host that has no certificate yet may join once. A token carries a secret, by which the cluster
// knows that an operator sent the host, and the fingerprint of the cluster's authority, by which the host knows the
// cluster.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "admission/certificates.h"
#include "base/result.h"
#include "base/thread_annotations.h"

namespace cairnfs::admission {

using Secret = std::array<uint8_t, 16>;

struct Token {
  Secret secret{};
  Fingerprint authority{};
  // "cairn-" and hex digits: the secret, the fingerprint, four bytes of a checksum.
  std::string Text() const;
  // kInvalidArgument: it is cut short, mistyped, or none.
  static Result<Token> Parse(std::string_view text);
};

// The tokens that a host has given out: in memory alone, so a restart ends them. Any thread.
class Tokens {
 public:
  static constexpr size_t kTokensMax = 1024;

  // A new one for the authority, good once and for `life`. kExhausted: so many are out that none is made.
  Result<Token> Make(const Fingerprint& authority, std::chrono::seconds life);
  bool IsGood(const Secret& secret) const;
  // Once at most for each: it was good, and is no more. Nullopt: it was not. PutBack makes it good again, for as long
  // as it would have been.
  using Until = std::chrono::nanoseconds;  // by Clock::SinceBoot
  std::optional<Until> Use(const Secret& secret);
  void PutBack(const Secret& secret, Until until);

 private:
  void DropOld() const REQUIRES_LOCK(mutex_);
  mutable Mutex mutex_;
  // By the secret's SHA-256, so that the time of a look-up tells nothing of the secret.
  mutable std::map<Fingerprint, Until> until_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::admission
