#pragma once

#include <string_view>

namespace lazyllm::llama {

/// The file page.html.
std::string_view report_template();

}  // namespace lazyllm::llama
