#include <limits>

#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/checkpoint/model_config.hpp"
#include "support.hpp"

namespace llama {
namespace {

using namespace testing;
using Json = nlohmann::json;

ModelConfig read(const Json& config) { return read_model_config(bytes_of(config.dump()), "config.json"); }

/// llama_json with `changes`, without the fields `missing`.
Json without(std::initializer_list<const char*> missing, const Json& changes = Json::object()) {
  Json config = llama_json(changes);
  for (const char* name : missing) config.erase(name);
  return config;
}

void rejects_config(const Json& config, std::initializer_list<std::string_view> parts) {
  CAPTURE(config.dump());
  check_rejected<checkpoint_error>([&] { read(config); }, parts);
  check_rejected<checkpoint_error>([&] { read(config); }, {"config.json"});
}

const Json mistral = {{"architectures", {"MistralForCausalLM"}}};
const Json qwen = {{"architectures", {"Qwen2ForCausalLM"}}};
const Json qwen3 = {{"architectures", {"Qwen3ForCausalLM"}}};

Json operator+(Json left, const Json& right) {
  left.update(right);
  return left;
}

TEST_CASE("Llama 2: every field arrives") {
  const ModelConfig config = read(llama_json());
  CHECK(config.architecture == "LlamaForCausalLM");
  CHECK(config.vocab == 96);
  CHECK(config.hidden_size == 32);
  CHECK(config.layers == 3);
  CHECK(config.heads == 4);
  CHECK(config.kv_heads == 2);
  CHECK(config.head_dim == 8);
  CHECK(config.intermediate_size == 48);
  CHECK(config.context == 128);
  CHECK(config.norm_epsilon == 1e-5);
  CHECK(config.rope_theta == 10000);
  CHECK(config.rope_scaling == RopeScaling(NoRopeScaling{}));
  CHECK_FALSE(config.rope_interleaved);
  CHECK_FALSE(config.tied_embeddings);
  CHECK_FALSE(config.qkv_bias);
  CHECK_FALSE(config.qk_norm);
  CHECK_FALSE(config.sliding_window.has_value());
  CHECK(config.bos_id == 1);
  CHECK(config.eos_ids == std::vector<std::int32_t>{2});
}

TEST_CASE("fields that may be missing or null take transformers' defaults") {
  CHECK(read(without({"num_key_value_heads"})).kv_heads == 4);
  CHECK(read(llama_json({{"num_key_value_heads", nullptr}})).kv_heads == 4);
  CHECK(read(llama_json(mistral + Json{{"num_key_value_heads", nullptr}})).kv_heads == 4);
  rejects_config(without({"num_key_value_heads"}, mistral), {"\"num_key_value_heads\" is missing"});
  rejects_config(without({"num_key_value_heads"}, qwen), {"\"num_key_value_heads\" is missing"});
  CHECK(read(without({"rms_norm_eps", "hidden_act", "tie_word_embeddings"})).norm_epsilon == 1e-6);
  CHECK(read(llama_json({{"head_dim", 16}})).head_dim == 16);
  CHECK(read(llama_json({{"head_dim", nullptr}})).head_dim == 8);
  CHECK(read(llama_json({{"tie_word_embeddings", true}})).tied_embeddings);
}

TEST_CASE("special tokens: one, several, none, defaults") {
  CHECK(read(llama_json({{"eos_token_id", {90, 91, 95}}})).eos_ids == std::vector<std::int32_t>{90, 91, 95});
  const ModelConfig none = read(llama_json({{"bos_token_id", nullptr}, {"eos_token_id", nullptr}}));
  CHECK_FALSE(none.bos_id.has_value());
  CHECK(none.eos_ids.empty());
  const ModelConfig missing = read(without({"bos_token_id", "eos_token_id"}));
  CHECK(missing.bos_id == 1);
  CHECK(missing.eos_ids == std::vector<std::int32_t>{2});
  const ModelConfig qwen_missing = read(without({"bos_token_id", "eos_token_id"}, qwen));
  CHECK_FALSE(qwen_missing.bos_id.has_value());
  CHECK(qwen_missing.eos_ids.empty());
  rejects_config(llama_json({{"bos_token_id", 96}}), {"\"bos_token_id\" is 96", "0 to 95"});
  rejects_config(llama_json({{"eos_token_id", {2, -1}}}), {"\"eos_token_id\" is -1"});
  rejects_config(llama_json({{"eos_token_id", "2"}}), {"\"eos_token_id\" is \"2\""});
  rejects_config(llama_json({{"eos_token_id", std::vector<int>(1001, 2)}}), {"\"eos_token_id\" has 1001"});
}

TEST_CASE("rotary positions: transformers 4 and 5 say the same") {
  const Json llama3 = {{"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64},
                       {"rope_type", "llama3"}};
  const RopeScaling expected = Llama3RopeScaling{8, 1, 4, 64};
  const ModelConfig old_form = read(llama_json({{"rope_theta", 500000.0}, {"rope_scaling", llama3}}));
  CHECK(old_form.rope_theta == 500000);
  CHECK(old_form.rope_scaling == expected);
  const ModelConfig new_form = read(llama_json({{"rope_parameters", llama3 + Json{{"rope_theta", 500000}}}}));
  CHECK(new_form.rope_theta == 500000);
  CHECK(new_form.rope_scaling == expected);

  for (const char* type : {"type", "rope_type"})
    CHECK(read(llama_json({{"rope_scaling", {{type, "linear"}, {"factor", 4}}}})).rope_scaling ==
          RopeScaling(LinearRopeScaling{4}));
  const ModelConfig plain = read(llama_json({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}}));
  CHECK(plain.rope_theta == 1e6);
  CHECK(plain.rope_scaling == RopeScaling(NoRopeScaling{}));
  CHECK(read(llama_json({{"rope_scaling", nullptr}})).rope_scaling == RopeScaling(NoRopeScaling{}));
  // Within the context, the only one that check_length allows, transformers' angles of "dynamic" are those without.
  for (const char* place : {"rope_scaling", "rope_parameters"})
    CHECK(read(llama_json({{place, {{"rope_type", "dynamic"}, {"factor", 2.0}}}})).rope_scaling ==
          RopeScaling(NoRopeScaling{}));

  // With both, transformers takes rope_scaling and nothing of rope_parameters, unless it is empty.
  const Json parameters = {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 100.0}};
  const ModelConfig both = read(llama_json({{"rope_theta", 5000.0},
                                            {"rope_parameters", parameters},
                                            {"rope_scaling", {{"type", "linear"}, {"factor", 4}}}}));
  CHECK(both.rope_theta == 5000);
  CHECK(both.rope_scaling == RopeScaling(LinearRopeScaling{4}));
  for (const Json& empty : {Json(nullptr), Json::object()}) {
    const ModelConfig one = read(llama_json({{"rope_parameters", parameters}, {"rope_scaling", empty}}));
    CHECK(one.rope_theta == 100);
    CHECK(one.rope_scaling == RopeScaling(LinearRopeScaling{2}));
  }

  Json without_original = llama3;
  without_original.erase("original_max_position_embeddings");
  CHECK(read(llama_json({{"rope_scaling", without_original}})).rope_scaling ==
        RopeScaling(Llama3RopeScaling{8, 1, 4, 128}));
}

TEST_CASE("rotary positions that are not supported or make no sense are refused") {
  for (const char* type : {"yarn", "longrope", "mrope"})
    for (const char* place : {"rope_scaling", "rope_parameters"})
      rejects_config(llama_json({{place, {{"rope_type", type}, {"factor", 2.0}}}}),
                     {place, "\"rope_type\" is", type, "\"default\", \"linear\", \"dynamic\", \"llama3\""});
  rejects_config(
      llama_json({{"rope_scaling", {{"type", "dynamic"}, {"factor", 2}, {"original_max_position_embeddings", 64}}}}),
      {"rope_scaling", "\"dynamic\" with \"original_max_position_embeddings\""});
  rejects_config(llama_json({{"rope_scaling", {{"type", "dynamic"}}}}), {"\"factor\" is missing"});
  rejects_config(llama_json({{"rope_scaling", {{"type", "linear"}}}}), {"rope_scaling", "\"factor\" is missing"});
  rejects_config(llama_json({{"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}}}), {"\"factor\" is 0.5", "1 to"});
  rejects_config(llama_json({{"rope_scaling", "linear"}}), {"rope_scaling", "expected a JSON object"});
  rejects_config(
      llama_json({{"rope_scaling",
                   {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}}}),
      {"\"high_freq_factor\" is 4", "more than"});
  rejects_config(llama_json({{"rope_theta", 0}}), {"\"rope_theta\" is 0"});
  rejects_config(llama_json({{"rope_theta", "big"}}), {"\"rope_theta\" is \"big\""});
  rejects_config(llama_json({{"partial_rotary_factor", 0.5}}), {"\"partial_rotary_factor\" is 0.5", "supported: 1"});
  rejects_config(
      llama_json({{"rope_parameters", {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}}),
      {"\"full_attention\"", "all layers"});
}

TEST_CASE("sliding windows: Mistral's always, Qwen2's only when it is switched on") {
  CHECK(read(llama_json(mistral + Json{{"sliding_window", 32}})).sliding_window == 32);
  CHECK_FALSE(read(llama_json(mistral + Json{{"sliding_window", nullptr}})).sliding_window.has_value());
  CHECK(read(llama_json(mistral)).sliding_window == 4096);
  CHECK_FALSE(read(llama_json(qwen + Json{{"sliding_window", 32}})).sliding_window.has_value());
  CHECK_FALSE(read(llama_json(qwen + Json{{"sliding_window", 32}, {"use_sliding_window", false}})).sliding_window);
  const Json windowed = qwen + Json{{"sliding_window", 32}, {"use_sliding_window", true}};
  CHECK(read(llama_json(windowed + Json{{"max_window_layers", 0}})).sliding_window == 32);
  CHECK(read(llama_json(windowed + Json{{"max_window_layers", 2}})).sliding_window == 32);
  CHECK_FALSE(read(llama_json(windowed + Json{{"max_window_layers", 3}})).sliding_window.has_value());
  CHECK_FALSE(read(llama_json(windowed)).sliding_window.has_value());  // transformers' default is 28
  CHECK(read(llama_json(windowed + Json{{"num_hidden_layers", 29}})).sliding_window == 32);
  const Json full = {"full_attention", "full_attention", "full_attention"};
  const Json mixed = {"full_attention", "full_attention", "sliding_attention"};
  CHECK_FALSE(read(llama_json(windowed + Json{{"max_window_layers", 0}, {"layer_types", full}})).sliding_window);
  CHECK(read(llama_json(windowed + Json{{"layer_types", mixed}})).sliding_window == 32);
  CHECK_FALSE(read(llama_json({{"sliding_window", 32}})).sliding_window.has_value());
  rejects_config(llama_json(mistral + Json{{"sliding_window", 0}}), {"\"sliding_window\" is 0"});
  rejects_config(llama_json(qwen + Json{{"use_sliding_window", "no"}}), {"\"use_sliding_window\" is \"no\""});
  rejects_config(llama_json(windowed + Json{{"max_window_layers", nullptr}}), {"\"max_window_layers\" is null"});
  rejects_config(llama_json(windowed + Json{{"layer_types", "full_attention"}}),
                 {"\"layer_types\" is \"full_attention\""});
}

TEST_CASE("a sequence may be as long as the window and the context, no longer") {
  const ModelConfig plain = read(llama_json());
  CHECK_NOTHROW(check_length(plain, 0));
  CHECK_NOTHROW(check_length(plain, 128));
  check_rejected<std::invalid_argument>([&] { check_length(plain, 129); }, {"129", "0 to 128", "context"});
  check_rejected<std::invalid_argument>([&] { check_length(plain, -1); }, {"-1"});
  const ModelConfig windowed = read(llama_json(mistral + Json{{"sliding_window", 32}}));
  CHECK_NOTHROW(check_length(windowed, 32));
  check_rejected<std::invalid_argument>([&] { check_length(windowed, 33); }, {"33", "sliding window of 32"});
}

TEST_CASE("Qwen2 has biases on queries, keys and values; the others may not ask for any") {
  CHECK(read(llama_json(qwen)).qkv_bias);
  CHECK_FALSE(read(llama_json(mistral)).qkv_bias);
  rejects_config(llama_json({{"attention_bias", true}}), {"\"attention_bias\" is true", "supported: false"});
  rejects_config(llama_json({{"mlp_bias", true}}), {"\"mlp_bias\" is true"});
}

TEST_CASE("Qwen3 has norms of heads instead of biases, heads of 128 where it does not say, and Qwen2's windows") {
  const ModelConfig config = read(llama_json(qwen3 + Json{{"head_dim", 16}}));
  CHECK(config.qk_norm);
  CHECK_FALSE(config.qkv_bias);
  CHECK(config.head_dim == 16);
  CHECK(read(llama_json(qwen3)).head_dim == 128);
  CHECK(read(llama_json(qwen3 + Json{{"hidden_size", 33}})).head_dim == 128);
  CHECK_FALSE(read(llama_json(qwen)).qk_norm);
  CHECK_FALSE(read(without({"bos_token_id"}, qwen3)).bos_id);
  const Json windowed = qwen3 + Json{{"sliding_window", 32}, {"use_sliding_window", true}};
  CHECK_FALSE(read(llama_json(windowed)).sliding_window);
  CHECK(read(llama_json(windowed + Json{{"max_window_layers", 0}})).sliding_window == 32);
  rejects_config(llama_json(qwen3 + Json{{"attention_bias", true}}), {"\"attention_bias\" is true"});
  CHECK_NOTHROW(read(llama_json(qwen3 + Json{{"mlp_bias", true}})));  // Qwen3 does not know it
  rejects_config(llama_json(qwen3 + Json{{"head_dim", nullptr}}), {"\"head_dim\" is null"});
}

TEST_CASE("without architectures the family is that of model_type") {
  const auto typed = [](const Json& type) { return without({"architectures"}, {{"model_type", type}}); };
  CHECK(read(typed("llama")).architecture == "LlamaForCausalLM");
  CHECK(read(typed("mistral")).architecture == "MistralForCausalLM");
  CHECK(read(typed("mistral")).sliding_window == 4096);
  CHECK(read(typed("qwen2")).architecture == "Qwen2ForCausalLM");
  CHECK(read(typed("qwen2")).qkv_bias);
  CHECK(read(typed("qwen3")).qk_norm);
  CHECK(read(llama_json({{"architectures", nullptr}})).architecture == "LlamaForCausalLM");
  rejects_config(typed("gemma"), {"\"model_type\" is \"gemma\"", "llama, mistral, qwen2, qwen3"});
  rejects_config(typed(5), {"\"model_type\" is 5"});
  rejects_config(without({"architectures", "model_type"}), {"\"architectures\" is missing", "\"model_type\""});
}

TEST_CASE("models of other kinds are refused by name") {
  rejects_config(llama_json({{"architectures", {"GemmaForCausalLM"}}}),
                 {"\"architectures\"", "Gemma", "Qwen2ForCausalLM"});
  rejects_config(llama_json({{"architectures", Json::array()}}), {"\"architectures\" is []"});
  rejects_config(llama_json({{"architectures", "LlamaForCausalLM"}}), {"\"architectures\"", "a list of one"});
  CHECK_NOTHROW(read(llama_json({{"hidden_act", "swish"}})));  // the same function
  rejects_config(llama_json({{"hidden_act", "gelu"}}), {"\"hidden_act\" is \"gelu\"", "\"silu\""});
  rejects_config(llama_json({{"hidden_act", nullptr}}), {"\"hidden_act\" is null", "\"silu\""});
  rejects_config(llama_json({{"rope_scaling", {{"factor", 4.0}}}}), {"rope_scaling", "\"factor\"", "no \"rope_type\""});
  rejects_config(llama_json({{"quantization_config", {{"quant_method", "gptq"}}}}), {"quantization_config", "gptq"});
  rejects_config(Json::array(), {"expected a JSON object"});
}

TEST_CASE("every size is checked at both ends") {
  struct Field {
    const char* name;
    Index most;
  };
  for (const auto& [name, most] :
       {Field{"vocab_size", ModelLimits::vocab}, Field{"hidden_size", ModelLimits::hidden_size},
        Field{"num_hidden_layers", ModelLimits::layers}, Field{"num_attention_heads", ModelLimits::heads},
        Field{"num_key_value_heads", ModelLimits::heads}, Field{"head_dim", ModelLimits::head_dim},
        Field{"intermediate_size", ModelLimits::intermediate_size},
        Field{"max_position_embeddings", ModelLimits::context}}) {
    const std::string quoted = '"' + std::string(name) + '"';
    for (const Json& value : {Json(0), Json(-1), Json(most + 1), Json(32.0), Json("32"), Json(true),
                              Json(std::numeric_limits<std::uint64_t>::max()), Json(std::numeric_limits<Index>::min())})
      rejects_config(llama_json({{name, value}}), {quoted, value.dump(), std::to_string(most)});
  }
  for (const char* name : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                           "max_position_embeddings"})
    rejects_config(without({name}), {'"' + std::string(name) + "\" is missing"});
  rejects_config(llama_json({{"num_key_value_heads", 3}}), {"\"num_attention_heads\" is 4", "(3)"});
  rejects_config(llama_json({{"hidden_size", 30}}), {"\"hidden_size\" is 30", "multiple"});
  rejects_config(llama_json({{"hidden_size", 12}}), {"width of a head is 3", "even"});
  rejects_config(llama_json({{"hidden_size", 131072}, {"num_attention_heads", 2}}),
                 {"width of a head is 65536", "4096"});
  rejects_config(llama_json({{"rms_norm_eps", 0}}), {"\"rms_norm_eps\" is 0"});
  rejects_config(llama_json({{"rms_norm_eps", -1e-5}}), {"\"rms_norm_eps\""});
}

}  // namespace
}  // namespace llama
