#pragma once

#include <filesystem>

/// \file
/// The embedded model, and a question that it can answer.

namespace llama::test {

inline const std::filesystem::path embedded_model = std::filesystem::path(LAZYLLM_SOURCE_DIR) / "examples/models/tiny";

inline constexpr const char* embedded_prompt =
    "Document 1: A report on the round pillow. The bird waited under the gates once. The round pillow was owned by "
    "Bromus Prisa.\n\n"
    "Question: Who owned the round pillow?\n"
    "Answer: The round pillow was owned by";

inline constexpr const char* embedded_answer = "Bromus Prisa";

}  // namespace llama::test
