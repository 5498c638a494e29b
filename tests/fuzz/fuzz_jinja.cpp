#include <cstdint>
#include <string_view>

#include "examples/llama/tokenizer/jinja.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const nlohmann::ordered_json variables{{"messages", {{{"role", "user"}, {"content", " Hello \u00e9\n"}}}},
                                         {"tools", nullptr},
                                         {"bos_token", "<s>"},
                                         {"eos_token", "</s>"},
                                         {"add_generation_prompt", true}};
  try {
    const llama::JinjaTemplate parsed(std::string_view(reinterpret_cast<const char*>(data), size));
    parsed.render(variables, {});
  } catch (const llama::tokenizer_error&) {
  }
  return 0;
}
