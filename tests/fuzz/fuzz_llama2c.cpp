#include <cstdint>

#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/checkpoint/llama2c.hpp"
#include "tests/fuzz/inside.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace llama;
  const auto file = std::as_bytes(std::span(data, size));
  try {
    require_inside(read_llama2c(file, "fuzz").tensors, file);
  } catch (const checkpoint_error&) {
  }
  return 0;
}
