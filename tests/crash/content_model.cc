#include "content_model.h"

#include <algorithm>
#include <cstring>

#include "../support/random.h"

namespace cairnfs::testing {

void ApplyData(const Record& record, std::string& content) {
  switch (record.step) {
    case Step::kTruncate: content.resize(record.length, '\0'); break;
    case Step::kPunch: {
      uint64_t end = std::min<uint64_t>(content.size(), record.offset + record.length);
      if (record.offset < end) std::memset(content.data() + record.offset, 0, end - record.offset);
      break;
    }
    default: {
      std::string made = record.bytes ? std::string() : MakeContent(record.seed, record.length);
      const std::string& bytes = record.bytes ? *record.bytes : made;
      if (content.size() < record.offset + bytes.size()) content.resize(record.offset + bytes.size(), '\0');
      std::memcpy(content.data() + record.offset, bytes.data(), bytes.size());
    }
  }
}

}  // namespace cairnfs::testing
