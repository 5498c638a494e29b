#pragma once

#include <string_view>

namespace llama {

/// The file page.html.
std::string_view report_template();

}  // namespace llama
