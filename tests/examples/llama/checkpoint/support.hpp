#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/examples/llama/files.hpp"

namespace llama::testing {

using test::TemporaryFolder;

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

/// The bytes of `values`, one after the other.
template <class Value>
std::string raw(const std::vector<Value>& values) {
  std::string bytes(values.size() * sizeof(Value), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// A safetensors file of any header text, right or wrong.
inline std::string safetensors(std::string_view header, std::string_view payload) {
  return raw<std::uint64_t>({header.size()}).append(header).append(payload);
}

/// Checks that `action` throws an `Error` whose message has every one of `parts`.
template <class Error, class Action>
void check_rejected(Action&& action, std::initializer_list<std::string_view> parts) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const std::string_view part : parts) {
      CAPTURE(message);
      CAPTURE(part);
      CHECK(message.find(part) != std::string::npos);
    }
    return;
  }
  FAIL_CHECK("nothing was thrown");
}

/// A small config.json of Llama 2's kind, with the fields of `changes` put over it.
inline nlohmann::json llama_json(const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                           {"model_type", "llama"},
                           {"hidden_act", "silu"},
                           {"vocab_size", 96},
                           {"hidden_size", 32},
                           {"intermediate_size", 48},
                           {"num_hidden_layers", 3},
                           {"num_attention_heads", 4},
                           {"num_key_value_heads", 2},
                           {"max_position_embeddings", 128},
                           {"rms_norm_eps", 1e-5},
                           {"tie_word_embeddings", false},
                           {"bos_token_id", 1},
                           {"eos_token_id", 2}};
  config.update(changes);
  return config;
}

}  // namespace llama::testing
