// Text of strangers, such as names of files, for a terminal or a log.
#pragma once

#include <string>
#include <string_view>

namespace cairnfs {

// `text` with each control character as \xNN for each of its bytes: those below space, DEL, and in UTF-8 those from
// U+0080 to U+009F, which terminals obey too. All else stays, whether or not it is UTF-8.
std::string Printable(std::string_view text);
// As Printable, and the bytes of all that is not ASCII too: of keys and of damaged files, which hold anything.
std::string PrintableAscii(std::string_view text);

// Whether it is UTF-8 without control characters below space and DEL.
bool IsPlainText(std::string_view text);

}  // namespace cairnfs
