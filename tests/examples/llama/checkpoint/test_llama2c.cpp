#include <functional>
#include <limits>
#include <numeric>

#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/checkpoint/llama2c.hpp"
#include "support.hpp"

namespace llama {
namespace {

using namespace testing;
using Header = std::vector<std::int32_t>;

// dim 8, ffn 12, 2 layers, 4 heads, 2 kv heads, untied vocabulary of 5, 6 positions.
const Header small = {8, 12, 2, 4, 2, -5, 6};

/// `small`'s weights are 0, 1, 2, ... in the file's order, so that a place can be read from a value.
std::string small_file(std::size_t floats) {
  std::vector<float> weights(floats);
  std::iota(weights.begin(), weights.end(), 0.0f);
  return raw(small) + raw(weights);
}

constexpr std::size_t shared_floats = 40 + 2 * (8 + 64 + 32 + 32 + 64 + 8 + 96 + 96 + 96) + 8 + 2 * 6;

void rejects_llama2c(const std::string& file, std::initializer_list<std::string_view> parts) {
  check_rejected<checkpoint_error>([&] { read_llama2c(bytes_of(file), "model.bin"); }, parts);
  check_rejected<checkpoint_error>([&] { read_llama2c(bytes_of(file), "model.bin"); }, {"model.bin: "});
}

TEST_CASE("a llama2.c file's weights are found under Hugging Face names") {
  const std::string file = small_file(shared_floats + 40);
  const Llama2cModel model = read_llama2c(bytes_of(file), "model.bin");
  CHECK(model.config.architecture == "llama2.c");
  CHECK(model.config.head_dim == 2);
  CHECK(model.config.vocab == 5);
  CHECK(model.config.norm_epsilon == 1e-5);
  CHECK(model.config.rope_interleaved);
  CHECK_FALSE(model.config.tied_embeddings);
  CHECK(model.tensors.size() == 2 * 9 + 3);

  const auto check = [&](const std::string& name, std::vector<Index> shape, float first) {
    CAPTURE(name);
    const auto found = model.tensors.find(name);
    REQUIRE(found != model.tensors.end());
    CHECK(found->second.dtype == "F32");
    CHECK(found->second.shape == shape);
    const Index elements = std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies<>());
    REQUIRE(static_cast<Index>(found->second.data.size()) == elements * 4);
    float value = 0;
    std::memcpy(&value, found->second.data.data(), sizeof value);
    CHECK(value == first);
  };
  // The order of llama2.c's memory_map_weights, each array holding all layers.
  check("model.embed_tokens.weight", {5, 8}, 0);
  check("model.layers.0.input_layernorm.weight", {8}, 40);
  check("model.layers.1.input_layernorm.weight", {8}, 48);
  check("model.layers.0.self_attn.q_proj.weight", {8, 8}, 56);
  check("model.layers.1.self_attn.q_proj.weight", {8, 8}, 120);
  check("model.layers.0.self_attn.k_proj.weight", {4, 8}, 184);
  check("model.layers.1.self_attn.v_proj.weight", {4, 8}, 280);
  check("model.layers.0.self_attn.o_proj.weight", {8, 8}, 312);
  check("model.layers.0.post_attention_layernorm.weight", {8}, 440);
  check("model.layers.0.mlp.gate_proj.weight", {12, 8}, 456);
  check("model.layers.0.mlp.down_proj.weight", {8, 12}, 648);
  check("model.layers.1.mlp.up_proj.weight", {12, 8}, 936);
  check("model.norm.weight", {8}, 1032);
  check("lm_head.weight", {5, 8}, 1052);
}

TEST_CASE("a positive vocabulary means tied embeddings and no classifier in the file") {
  std::string file = small_file(shared_floats);
  Header header = small;
  header[5] = 5;
  file.replace(0, 28, raw(header));
  const Llama2cModel model = read_llama2c(bytes_of(file), "model.bin");
  CHECK(model.config.tied_embeddings);
  CHECK_FALSE(model.tensors.contains("lm_head.weight"));
  CHECK(model.tensors.size() == 2 * 9 + 2);
}

TEST_CASE("a llama2.c file of another size than its header needs is refused") {
  const std::string file = small_file(shared_floats + 40);
  rejects_llama2c(file.substr(0, 27), {"27 bytes", "header has 28"});
  rejects_llama2c(file.substr(0, 28), {"28 bytes", std::to_string(file.size()), "truncated"});
  rejects_llama2c(file.substr(0, file.size() - 1), {std::to_string(file.size() - 1), "truncated"});
  rejects_llama2c(file + "x", {std::to_string(file.size() + 1), "needs " + std::to_string(file.size())});
}

TEST_CASE("numbers of a llama2.c header out of range are named") {
  struct Change {
    std::size_t at;
    std::int32_t value;
    const char* name;
  };
  const std::int32_t least = std::numeric_limits<std::int32_t>::min();
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  for (const Change& change : {Change{0, 0, "dim"}, Change{0, -8, "dim"}, Change{0, most, "dim"}, Change{0, 12, "dim"},
                               Change{1, 0, "hidden_dim"}, Change{1, most, "hidden_dim"}, Change{2, 0, "n_layers"},
                               Change{2, 1001, "n_layers"}, Change{3, 0, "n_heads"}, Change{3, most, "n_heads"},
                               Change{4, 0, "n_kv_heads"}, Change{4, 3, "n_kv_heads"}, Change{4, 5, "n_kv_heads"},
                               Change{5, 0, "vocab_size"}, Change{5, least, "vocab_size"},
                               Change{5, most, "vocab_size"}, Change{6, 0, "seq_len"}, Change{6, most, "seq_len"}}) {
    CAPTURE(change.name);
    CAPTURE(change.value);
    Header header = small;
    header[change.at] = change.value;
    rejects_llama2c(raw(header) + std::string(64, '\0'), {change.name, "expected"});
  }
  Header largest = {1 << 17, 1 << 20, 1000, 32, 32, -(1 << 24), 1 << 30};
  rejects_llama2c(raw(largest), {"truncated"});
  rejects_llama2c(raw(Header{0x616b3432, 1, 64, 0, 0, 0, 0}), {"version 1", "version 0"});
}

}  // namespace
}  // namespace llama
