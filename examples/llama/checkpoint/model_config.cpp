#include "examples/llama/checkpoint/model_config.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/checkpoint/json.hpp"

namespace llama {
namespace {

using Json = nlohmann::json;

/// The fields of one JSON object, read with range checks. A field that is null counts as absent unless said otherwise.
class Fields {
 public:
  Fields(const Json& object, std::string_view place) : object_(object), place_(place) {
    if (!object.is_object()) reject(place, "expected a JSON object, found {}", shown(object));
  }

  /// The field's value, null included; nullptr when it is missing.
  const Json* find(std::string_view name) const {
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }

  bool has(std::string_view name) const {
    const Json* value = find(name);
    return value && !value->is_null();
  }

  const Json& required(std::string_view name) const {
    if (!has(name)) reject(place_, "field \"{}\" is missing", name);
    return *find(name);
  }

  Index integer(std::string_view name, Index least, Index most) const {
    return integer(name, required(name), least, most);
  }

  Index integer(std::string_view name, const Json& value, Index least, Index most) const {
    const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most)
                                                 : value.is_number_integer() && value.get<std::int64_t>() <= most;
    if (!fits || value.get<Index>() < least)
      reject(place_, "field \"{}\" is {}, expected an integer from {} to {}", name, shown(value), least, most);
    return value.get<Index>();
  }

  double number(std::string_view name, double least, double most) const {
    const Json& value = required(name);
    if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most))
      reject(place_, "field \"{}\" is {}, expected a number from {} to {}", name, shown(value), least, most);
    return value.get<double>();
  }

  double number_or(std::string_view name, double least, double most, double absent) const {
    return has(name) ? number(name, least, most) : absent;
  }

  bool flag(std::string_view name) const {
    if (!has(name)) return false;
    const Json& value = *find(name);
    if (!value.is_boolean()) reject(place_, "field \"{}\" is {}, expected true or false", name, shown(value));
    return value.get<bool>();
  }

  std::string text_or(std::string_view name, std::string_view absent) const {
    if (!has(name)) return std::string(absent);
    const Json& value = *find(name);
    if (!value.is_string()) reject(place_, "field \"{}\" is {}, expected a string", name, shown(value));
    return value.get<std::string>();
  }

  [[noreturn]] void unsupported(std::string_view name, const Json& value, std::string_view supported) const {
    reject(place_, "field \"{}\" is {}, supported: {}", name, shown(value), supported);
  }

  std::string_view place() const { return place_; }

 private:
  const Json& object_;
  std::string_view place_;
};

enum class Family { llama, mistral, qwen2, qwen3 };

struct KnownFamily {
  Family family;
  std::string_view architecture, model_type;
};
constexpr std::array known_families{KnownFamily{Family::llama, "LlamaForCausalLM", "llama"},
                                    KnownFamily{Family::mistral, "MistralForCausalLM", "mistral"},
                                    KnownFamily{Family::qwen2, "Qwen2ForCausalLM", "qwen2"},
                                    KnownFamily{Family::qwen3, "Qwen3ForCausalLM", "qwen3"}};

constexpr bool is_qwen(Family family) { return family == Family::qwen2 || family == Family::qwen3; }

/// The family is that of "architectures"; a file without it has it from "model_type".
Family read_family(const Fields& fields, ModelConfig& config) {
  const auto names = [](std::string_view KnownFamily::*name) {
    std::vector<std::string_view> all;
    for (const KnownFamily& known : known_families) all.push_back(known.*name);
    return fmt::format("{}", fmt::join(all, ", "));
  };
  if (!fields.has("architectures")) {
    if (!fields.has("model_type"))
      reject(fields.place(), "field \"architectures\" is missing, and so is \"model_type\"");
    const Json& type = *fields.find("model_type");
    for (const KnownFamily& known : known_families) {
      if (type != known.model_type) continue;
      config.architecture = known.architecture;
      return known.family;
    }
    fields.unsupported("model_type", type, names(&KnownFamily::model_type));
  }
  const Json& list = *fields.find("architectures");
  if (!list.is_array() || list.size() != 1 || !list[0].is_string())
    fields.unsupported("architectures", list, fmt::format("a list of one of {}", names(&KnownFamily::architecture)));
  config.architecture = list[0].get<std::string>();
  for (const KnownFamily& known : known_families) {
    if (config.architecture == known.architecture) return known.family;
  }
  fields.unsupported("architectures", list, names(&KnownFamily::architecture));
}

/// Refuses what would silently give other results.
void check_supported(const Fields& fields, Family family) {
  // transformers has a default for a missing activation, and fails for null.
  if (const Json* act = fields.find("hidden_act"); act != nullptr && *act != "silu" && *act != "swish")
    fields.unsupported("hidden_act", *act, "\"silu\" and its other name \"swish\"");
  const bool may_have_bias = family == Family::llama || family == Family::qwen3;
  if (may_have_bias && fields.flag("attention_bias")) fields.unsupported("attention_bias", true, "false");
  if (family == Family::llama && fields.flag("mlp_bias")) fields.unsupported("mlp_bias", true, "false");
  if (fields.has("quantization_config"))
    fields.unsupported("quantization_config", *fields.find("quantization_config"),
                       "weights that are not quantized (F32, F16, BF16)");
}

void read_shape(const Fields& fields, Family family, ModelConfig& config) {
  using Limits = ModelLimits;
  config.vocab = fields.integer("vocab_size", 1, Limits::vocab);
  config.hidden_size = fields.integer("hidden_size", 1, Limits::hidden_size);
  config.layers = fields.integer("num_hidden_layers", 1, Limits::layers);
  config.intermediate_size = fields.integer("intermediate_size", 1, Limits::intermediate_size);
  config.context = fields.integer("max_position_embeddings", 1, Limits::context);
  config.heads = fields.integer("num_attention_heads", 1, Limits::heads);

  // Null means "as many as heads" everywhere; only Llama's default for a missing field is the same.
  if (fields.has("num_key_value_heads"))
    config.kv_heads = fields.integer("num_key_value_heads", 1, Limits::heads);
  else if (family == Family::llama || fields.find("num_key_value_heads"))
    config.kv_heads = config.heads;
  else
    fields.required("num_key_value_heads");
  if (config.heads % config.kv_heads != 0)
    reject(fields.place(), "field \"num_attention_heads\" is {}, expected a multiple of \"num_key_value_heads\" ({})",
           config.heads, config.kv_heads);

  // transformers takes null as missing, but of Qwen3, whose heads have a default.
  const Json* head_dim = fields.find("head_dim");
  if (head_dim && (!head_dim->is_null() || family == Family::qwen3)) {
    config.head_dim = fields.integer("head_dim", *head_dim, 2, Limits::head_dim);
  } else if (family == Family::qwen3) {
    config.head_dim = 128;
  } else {
    if (config.hidden_size % config.heads != 0)
      reject(fields.place(), "field \"hidden_size\" is {}, expected a multiple of \"num_attention_heads\" ({})",
             config.hidden_size, config.heads);
    config.head_dim = config.hidden_size / config.heads;
  }
  if (config.head_dim % 2 != 0 || config.head_dim > Limits::head_dim)
    reject(fields.place(), "the width of a head is {}, expected an even number up to {} (rotary positions use pairs)",
           config.head_dim, Limits::head_dim);
}

void read_rope(const Fields& fields, ModelConfig& config) {
  static const Json empty = Json::object();
  // transformers takes rope_scaling unless it is null or {}, and then nothing of rope_parameters.
  const Json* scaling = fields.find("rope_scaling");
  const std::string_view name = scaling && !scaling->empty() ? "rope_scaling" : "rope_parameters";
  const Json& value = fields.has(name) ? *fields.find(name) : empty;
  const std::string inner_place = fmt::format("{}, {}", fields.place(), name);
  const Fields rope(value, inner_place);

  constexpr double max_theta = 1e12;
  config.rope_theta = (rope.has("rope_theta") ? rope : fields).number_or("rope_theta", 1, max_theta, config.rope_theta);
  for (const Fields& place : {rope, fields})
    if (place.number_or("partial_rotary_factor", 0, 1, 1) != 1)
      place.unsupported("partial_rotary_factor", *place.find("partial_rotary_factor"), "1");

  constexpr double max_factor = 1e6;
  const std::string type_field = rope.has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.text_or(type_field, "default");
  if (type == "linear") {
    config.rope_scaling = LinearRopeScaling{rope.number("factor", 1, max_factor)};
  } else if (type == "llama3") {
    const double low = rope.number("low_freq_factor", 1e-6, max_factor);
    const double high = rope.number("high_freq_factor", 1e-6, max_factor);
    if (low >= high)
      reject(inner_place, "field \"high_freq_factor\" is {}, expected more than \"low_freq_factor\" ({})", high, low);
    config.rope_scaling =
        Llama3RopeScaling{.factor = rope.number("factor", 1, max_factor),
                          .low_freq_factor = low,
                          .high_freq_factor = high,
                          .original_max_position_embeddings =
                              rope.has("original_max_position_embeddings")
                                  ? rope.integer("original_max_position_embeddings", 1, ModelLimits::context)
                                  : config.context};
  } else if (type == "dynamic") {
    // The base grows with a sequence that is longer than the context, which check_length refuses. Up to there the
    // angles are those without scaling, unless the context that counts is another one.
    rope.number("factor", 1, max_factor);
    if (rope.has("original_max_position_embeddings"))
      reject(inner_place, "\"dynamic\" with \"original_max_position_embeddings\" is not supported, only without it");
  } else if (type != "default") {
    rope.unsupported(type_field, type, "\"default\", \"linear\", \"dynamic\", \"llama3\"");
  } else {
    if (!rope.has(type_field) && rope.has("factor"))
      reject(inner_place, "there is a \"factor\" and no \"rope_type\" that says what it does");
    for (const auto& [key, nested] : value.items())
      if (nested.is_object()) rope.unsupported(key, nested, "the same rotary parameters in all layers");
  }
}

/// Whether any layer of a Qwen model with `layers` has the window: those that "layer_types" says, else those from
/// "max_window_layers" on.
bool qwen_uses_window(const Fields& fields, Index layers) {
  if (!fields.flag("use_sliding_window")) return false;
  if (fields.has("layer_types")) {
    const Json& types = *fields.find("layer_types");
    if (!types.is_array()) fields.unsupported("layer_types", types, "a list with a name for each layer");
    return std::ranges::find(types, "sliding_attention") != types.end();
  }
  constexpr Index when_missing = 28;  // transformers' default
  const Json* given = fields.find("max_window_layers");
  const Index first = given ? fields.integer("max_window_layers", *given, 0, ModelLimits::layers) : when_missing;
  return first < layers;
}

void read_sliding_window(const Fields& fields, Family family, ModelConfig& config) {
  const bool used = family == Family::mistral || (is_qwen(family) && qwen_uses_window(fields, config.layers));
  if (!used) return;
  constexpr Index when_missing = 4096;  // transformers' default of all; null means none
  if (!fields.find("sliding_window"))
    config.sliding_window = when_missing;
  else if (fields.has("sliding_window"))
    config.sliding_window = fields.integer("sliding_window", 1, ModelLimits::context);
}

void read_special_tokens(const Fields& fields, Family family, ModelConfig& config) {
  const auto id = [&](std::string_view name, const Json& value) {
    return static_cast<std::int32_t>(fields.integer(name, value, 0, config.vocab - 1));
  };
  const bool has_defaults = !is_qwen(family);
  if (fields.has("bos_token_id"))
    config.bos_id = id("bos_token_id", *fields.find("bos_token_id"));
  else if (has_defaults && !fields.find("bos_token_id"))
    config.bos_id = 1;

  const Json* eos = fields.find("eos_token_id");
  if (eos && eos->is_array()) {
    constexpr std::size_t max_ends = 1000;
    if (eos->size() > max_ends)
      reject(fields.place(), "field \"eos_token_id\" has {} entries, allowed are {}", eos->size(), max_ends);
    for (const Json& entry : *eos) config.eos_ids.push_back(id("eos_token_id", entry));
  } else if (eos && !eos->is_null()) {
    config.eos_ids = {id("eos_token_id", *eos)};
  } else if (has_defaults && !eos) {
    config.eos_ids = {2};
  }
}

}  // namespace

ModelConfig read_model_config(std::span<const std::byte> json_text, std::string_view place) {
  const Json object = parse_json(json_text, place);
  const Fields fields(object, place);
  ModelConfig config;
  const Family family = read_family(fields, config);
  check_supported(fields, family);
  read_shape(fields, family, config);
  constexpr double min_epsilon = 1e-30;
  config.norm_epsilon = fields.number_or("rms_norm_eps", min_epsilon, 1, config.norm_epsilon);
  read_rope(fields, config);
  config.tied_embeddings = fields.flag("tie_word_embeddings");
  config.qkv_bias = family == Family::qwen2;
  config.qk_norm = family == Family::qwen3;
  read_sliding_window(fields, family, config);
  read_special_tokens(fields, family, config);
  return config;
}

void check_length(const ModelConfig& config, Index tokens) {
  if (tokens < 0 || tokens > config.context)
    fail("a sequence of ", tokens, " tokens, allowed are 0 to ", config.context, ", the model's context");
  if (config.sliding_window && tokens > *config.sliding_window)
    fail("a sequence of ", tokens, " tokens is longer than the model's sliding window of ", *config.sliding_window,
         "; sliding windows are not supported, allowed are 0 to ", *config.sliding_window, " tokens");
}

}  // namespace llama
