#include <cstdint>
#include <string_view>

#include "examples/llama/tokenizer/loaders.hpp"

namespace {

/// Encodes and decodes a text that has words, digits, other scripts and special tokens.
void use(const llama::Tokenizer& tokenizer) {
  using namespace llama;
  TextStream stream;
  TokenId previous = no_token;
  for (const TokenId token : tokenizer.encode("the the 123 \u4f60e\u0301\xFF <s>\n  <|endoftext|> abab", true)) {
    if (token < 0 || token >= tokenizer.vocabulary_size()) __builtin_trap();
    stream.push(tokenizer.decode(previous, token));
    previous = token;
  }
  stream.flush();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace llama;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    use(*(bytes.starts_with('{') ? load_hugging_face_bpe(bytes, "fuzz", {}) : load_llama2c(bytes, "fuzz", {})));
  } catch (const tokenizer_error&) {
  }
  return 0;
}
