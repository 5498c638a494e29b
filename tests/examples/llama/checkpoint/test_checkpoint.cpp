#include <cmath>
#include <cstdlib>
#include <iterator>
#include <memory>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/checkpoint/error.hpp"
#include "support.hpp"

namespace llama {
namespace {

using namespace testing;

const std::string tensor_a = safetensors(
    R"({"model.norm.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"lm_head.weight":{"dtype":"I32","shape":[1],"data_offsets":[8,12]}})",
    raw<float>({1.5f, -2.0f}) + "1234");
const std::string tensor_b =
    safetensors(R"({"model.embed_tokens.weight":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})",
                raw<std::uint16_t>({0x3f80, 0xc000}));

std::vector<float> floats(const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  to_float(tensor, 0, values);
  return values;
}

void rejects_path(const std::filesystem::path& path, std::initializer_list<std::string_view> parts) {
  check_rejected<file_error>([&] { Checkpoint{path}; }, parts);
}

TEST_CASE("a directory with one safetensors file") {
  const TemporaryFolder directory;
  directory.write("config.json", llama_json().dump());
  directory.write("model.safetensors", tensor_a);
  const Checkpoint checkpoint(directory.path());
  CHECK(checkpoint.config().hidden_size == 32);
  CHECK(checkpoint.has("model.norm.weight"));
  CHECK_FALSE(checkpoint.has("model.embed_tokens.weight"));
  CHECK(floats(checkpoint.tensor("model.norm.weight", {1, 2})) == std::vector<float>{1.5f, -2.0f});

  const std::string place = directory.path().string();
  check_rejected<checkpoint_error>([&] { checkpoint.tensor("model.embed_tokens.weight"); },
                                   {place, "\"model.embed_tokens.weight\" is missing"});
  check_rejected<checkpoint_error>(
      [&] {
        checkpoint.tensor("model.norm.weight", {2, 1});
      },
      {place, "\"model.norm.weight\"", "shape [1,2]", "expected [2,1]"});
  check_rejected<checkpoint_error>([&] { checkpoint.tensor("model.norm.weight", {1}); }, {"expected [1]"});
  check_rejected<checkpoint_error>([&] { checkpoint.tensor("lm_head.weight"); },
                                   {place, "\"lm_head.weight\"", "I32", "F32, F16, BF16"});
}

TEST_CASE("a copy keeps the weights after the original is gone") {
  const TemporaryFolder directory;
  directory.write("config.json", llama_json().dump());
  directory.write("model.safetensors", tensor_a);
  auto original = std::make_unique<Checkpoint>(directory.path());
  const Tensor before = original->tensor("model.norm.weight");
  const Checkpoint copy = *original;
  original.reset();
  CHECK(copy.tensor("model.norm.weight").data == before.data);
  CHECK(floats(before) == std::vector<float>{1.5f, -2.0f});
}

TEST_CASE("a directory with shards") {
  const TemporaryFolder directory;
  directory.write("config.json", llama_json().dump());
  directory.write("x-1.safetensors", tensor_a);
  directory.write("x-2.safetensors", tensor_b);
  const auto index = [&](const std::string& map) {
    directory.write("model.safetensors.index.json", "{\"weight_map\":" + map + "}");
  };
  index(R"({"model.norm.weight":"x-1.safetensors","model.embed_tokens.weight":"x-2.safetensors",
            "lm_head.weight":"x-1.safetensors"})");
  const Checkpoint checkpoint(directory.path());
  CHECK(floats(checkpoint.tensor("model.norm.weight")) == std::vector<float>{1.5f, -2.0f});
  CHECK(floats(checkpoint.tensor("model.embed_tokens.weight")) == std::vector<float>{1, -2});

  index(R"({"model.norm.weight":"x-1.safetensors","model.embed_tokens.weight":"x-2.safetensors"})");
  rejects_path(directory.path(), {"index.json", "\"lm_head.weight\" is in x-1.safetensors, but not in the index"});
  index(R"({"model.norm.weight":"x-2.safetensors"})");
  rejects_path(directory.path(), {"index.json", "\"model.norm.weight\"", "x-2.safetensors"});
  index(R"({"model.norm.weight":"x-3.safetensors"})");
  rejects_path(directory.path(), {"x-3.safetensors", "No such file"});
  index(R"({"model.norm.weight":"../x-1.safetensors"})");
  rejects_path(directory.path(), {"index.json", "plain file name"});
}

TEST_CASE("paths that hold no checkpoint are explained") {
  const TemporaryFolder directory;
  rejects_path(directory.path() / "absent", {"absent", "No such file"});
  rejects_path(directory.path(), {"config.json", "No such file"});
  directory.write("config.json", "");
  rejects_path(directory.path(), {"config.json", "empty"});
  directory.write("config.json", llama_json().dump());
  rejects_path(directory.path(), {"neither model.safetensors nor model.safetensors.index.json"});
  directory.write("model.safetensors", "");
  rejects_path(directory.path(), {"model.safetensors", "empty"});
  directory.write("model.safetensors", tensor_a.substr(0, tensor_a.size() - 1));
  rejects_path(directory.path(), {"model.safetensors", "data_offsets"});
  rejects_path(directory.write("model.gguf", "GGUF"), {"model.gguf", ".bin"});
}

TEST_CASE("a weight that the configuration does not describe is refused, not ignored") {
  const TemporaryFolder directory;
  const auto try_name = [&](const std::string& name, const nlohmann::json& changes = nlohmann::json::object()) {
    directory.write("config.json", llama_json(changes).dump());
    const nlohmann::json header = {{name, {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {0, 4}}}}};
    directory.write("model.safetensors", safetensors(header.dump(), "1234"));
    return Checkpoint(directory.path()).has(name);
  };
  const auto refused = [&](const std::string& name, const nlohmann::json& changes = nlohmann::json::object()) {
    CAPTURE(name);
    check_rejected<checkpoint_error>([&] { try_name(name, changes); },
                                     {(directory.path() / "model.safetensors").string(), nlohmann::json(name).dump(),
                                      "does not belong to the model"});
  };
  for (const char* rest :
       {"input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
        "self_attn.o_proj.weight", "post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
        "mlp.down_proj.weight", "self_attn.rotary_emb.inv_freq"}) {
    CHECK(try_name(std::string("model.layers.2.") + rest));
  }
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight", "model.rotary_emb.inv_freq"})
    CHECK(try_name(name));
  CHECK(try_name("lm_head.weight"));
  CHECK(try_name("lm_head.weight", {{"tie_word_embeddings", true}}));
  for (const char* name : {"model.layers.3.mlp.up_proj.weight", "model.layers.02.mlp.up_proj.weight",
                           "model.layers.-1.mlp.up_proj.weight", "model.layers.2", "model.layers.2.",
                           "model.layers.99999999999999999999.mlp.up_proj.weight", "model.layers.2.mlp.up_proj.bias",
                           "model.layers.2.self_attn.q_norm.weight", "lm_head.bias", "transformer.wte.weight", ""}) {
    refused(name);
  }
  const nlohmann::json qwen = {{"architectures", {"Qwen2ForCausalLM"}}};
  CHECK(try_name("model.layers.2.self_attn.q_proj.bias", qwen));
  refused("model.layers.2.self_attn.q_proj.bias");
  refused("model.layers.2.self_attn.o_proj.bias", qwen);
  refused("model.layers.2.self_attn.q_norm.weight", qwen);
  const nlohmann::json qwen3 = {{"architectures", {"Qwen3ForCausalLM"}}};
  CHECK(try_name("model.layers.2.self_attn.q_norm.weight", qwen3));
  CHECK(try_name("model.layers.2.self_attn.k_norm.weight", qwen3));
  refused("model.layers.2.self_attn.v_norm.weight", qwen3);
  refused("model.layers.2.self_attn.q_proj.bias", qwen3);
}

TEST_CASE("a classifier beside the embedding table counts where it is another one, as in transformers") {
  const TemporaryFolder directory;
  const auto tied = [&](bool flag, const nlohmann::json& classifier, std::string_view payload) {
    directory.write("config.json", llama_json({{"tie_word_embeddings", flag}}).dump());
    nlohmann::json header = {
        {"model.embed_tokens.weight", {{"dtype", "F16"}, {"shape", {2, 2}}, {"data_offsets", {0, 8}}}}};
    if (!classifier.is_null()) header["lm_head.weight"] = classifier;
    directory.write("model.safetensors", safetensors(header.dump(), payload));
    return Checkpoint(directory.path()).config().tied_embeddings;
  };
  const nlohmann::json same = {{"dtype", "F16"}, {"shape", {2, 2}}, {"data_offsets", {8, 16}}};
  CHECK(tied(true, nullptr, "ABCDEFGH"));
  CHECK(tied(true, same, "ABCDEFGHABCDEFGH"));
  CHECK_FALSE(tied(false, same, "ABCDEFGHABCDEFGH"));
  CHECK_FALSE(tied(true, same, "ABCDEFGHABCDEFGh"));
  CHECK_FALSE(tied(true, {{"dtype", "BF16"}, {"shape", {2, 2}}, {"data_offsets", {8, 16}}}, "ABCDEFGHABCDEFGH"));
  CHECK_FALSE(tied(true, {{"dtype", "F16"}, {"shape", {4, 1}}, {"data_offsets", {8, 16}}}, "ABCDEFGHABCDEFGH"));
}

TEST_CASE("names and types from a checkpoint reach a message without control characters") {
  const TemporaryFolder directory;
  directory.write("config.json", llama_json().dump());
  directory.write(
      "model.safetensors",
      safetensors(R"({"model.norm.weight":{"dtype":"\u001b[2J","shape":[1],"data_offsets":[0,4]}})", "1234"));
  check_rejected<checkpoint_error>([&] { Checkpoint(directory.path()).tensor("model.norm.weight"); },
                                   {"elements of type \"\\u001b[2J\""});
}

std::filesystem::path stories260k() { return test::real_input("stories260K/stories260K.bin"); }

TEST_CASE("stories260K opens, and damaged copies of it do not") {
  if (!std::filesystem::exists(stories260k())) {
    MESSAGE("skipped: stories260K.bin is not here");
    return;
  }
  const Checkpoint checkpoint(stories260k());
  const ModelConfig& config = checkpoint.config();
  CHECK(config.hidden_size == 64);
  CHECK(config.layers == 5);
  CHECK(config.heads == 8);
  CHECK(config.kv_heads == 4);
  CHECK(config.head_dim == 8);
  CHECK(config.intermediate_size == 172);
  CHECK(config.vocab == 512);
  CHECK(config.context == 512);
  CHECK(config.rope_interleaved);

  // Trained norm gains lie around one; any slip of the layout would put other weights here.
  for (const char* name : {"model.layers.0.input_layernorm.weight", "model.layers.4.post_attention_layernorm.weight",
                           "model.norm.weight"}) {
    double sum = 0;
    for (const float value : floats(checkpoint.tensor(name, {64}))) sum += value;
    CAPTURE(name);
    CHECK(sum / 64 > 0.3);
  }
  for (const float value : floats(checkpoint.tensor("model.layers.4.mlp.up_proj.weight", {172, 64})))
    CHECK(std::isfinite(value));

  std::ifstream stream(stories260k(), std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(stream), {}};
  const TemporaryFolder directory;
  rejects_path(directory.write("half.bin", good.substr(0, good.size() / 2)),
               {"half.bin", std::to_string(good.size() / 2), "needs " + std::to_string(good.size()), "truncated"});
  rejects_path(directory.write("stub.bin", good.substr(0, 20)), {"stub.bin", "20 bytes"});
  std::string corrupted = good;
  corrupted[8] = 6;  // one layer more
  rejects_path(directory.write("layers.bin", corrupted), {"layers.bin", "6 layers", "truncated"});
  corrupted[11] = '\x7f';
  rejects_path(directory.write("many.bin", corrupted), {"many.bin", "n_layers", "1 to 1000"});
}

}  // namespace
}  // namespace llama
