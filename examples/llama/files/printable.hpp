#pragma once

#include <string>
#include <string_view>

namespace llama {

/// Which control characters of a text stay as they are.
enum class Controls { none, lines };

/// `text` for a terminal: control characters, and bytes that are not UTF-8, become `\xNN`, so that a text from a file
/// cannot move the cursor, change colours or clear the screen. `Controls::lines` leaves newlines and tabs.
std::string printable(std::string_view text, Controls kept = Controls::none);

}  // namespace llama
