#pragma once

#include <filesystem>
#include "tests/support/source_folder.hpp"

/// \file
/// The embedded model, and a question that it can answer.

namespace llama::test {

inline const std::filesystem::path embedded_model = lazyllm::test::source_folder() / "examples/models/tiny";

inline constexpr const char* embedded_prompt =
    "Document 1: A report on the round pillow. The bird waited under the gates once. The round pillow was owned by "
    "Bromus Prisa.\n\n"
    "Question: Who owned the round pillow?\n"
    "Answer: The round pillow was owned by";

inline constexpr const char* embedded_answer = "Bromus Prisa";

}  // namespace llama::test
