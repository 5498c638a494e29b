#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lazyllm::test {

/// A prompt for the small engines, whose vocabularies have 150 tokens at least.
inline std::vector<std::int32_t> prompt_of(std::size_t length) {
  std::vector<std::int32_t> prompt(length);
  for (std::size_t i = 0; i < length; ++i) prompt[i] = static_cast<std::int32_t>(i * i % 150);
  return prompt;
}

}  // namespace lazyllm::test
