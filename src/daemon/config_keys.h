// The table of configuration keys: name, type, range, and where in Config each goes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "daemon/config.h"

namespace cairnfs::daemon {

// A value of a kind that no key takes.
struct OtherValue {
  std::string kind;  // in words: "a table"
};

// A value as it was written; text when it came from -o.
using ConfigValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>, OtherValue>;

struct ConfigKey {
  enum class Kind {
    kPath,
    kSize,
    kDuration,
    kCount,
    kFlag,
    kChoice,
    kAddress,
    kText,
    kWords,
    kWeight,    // a number from 0 on, or kWeightOfCapacity
    kStore,     // where the shared metadata is
    kNetworks,  // a network as address/bits, or a list of them
  };
  using Target = std::variant<std::string Config::*, uint64_t Config::*, bool Config::*, double Config::*,
                              std::vector<std::string> Config::*>;

  std::string_view name;
  Kind kind;
  Target target;
  uint64_t value_min = 0, value_max = 0;  // sizes, durations (ms), counts
  std::string_view zero_means = {};       // of a 0 below value_min, in words; empty: it is not allowed
  std::vector<std::string_view> choices = {};
};

std::span<const ConfigKey> ConfigKeys();
const ConfigKey* FindKey(std::string_view name);

// Checks type and range and stores the value. The message of an error says what would be right, without the key's name.
Status StoreValue(const ConfigKey& key, const ConfigValue& value, Config& config);
// As StoreValue for the text of an -o option: numbers and booleans are parsed first.
Status StoreText(const ConfigKey& key, std::string_view text, Config& config);

}  // namespace cairnfs::daemon
