#include "product_cases.hpp"
#include "support/runs.hpp"

namespace llama::test {
namespace {

/// The first ones, where sanitizers make each take long.
template <class Value>
std::vector<Value> some(std::vector<Value> values) {
  values.resize(std::min<std::size_t>(values.size(), lazyllm::test::runs(static_cast<unsigned>(values.size()))));
  return values;
}

TEST_CASE("cuda: matrix products of the models") {
  const auto row_counts = some(std::vector<Index>{17, 1, 615, 1229, 4096});
  for (const std::string_view shape :
       some(std::vector<std::string_view>{"smollm2", "qwen2.5-0.5b", "1.1b", "llama-2-7b", "llama-3-8b"})) {
    model_products<__nv_bfloat16>(shape, row_counts, 8e-3);
    model_products<__half>(shape, row_counts, 1e-3);
  }
}

}  // namespace
}  // namespace llama::test
