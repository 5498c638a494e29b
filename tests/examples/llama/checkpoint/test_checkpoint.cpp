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
    R"({"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"i":{"dtype":"I32","shape":[1],"data_offsets":[8,12]}})",
    raw<float>({1.5f, -2.0f}) + "1234");
const std::string tensor_b =
    safetensors(R"({"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})", raw<std::uint16_t>({0x3f80, 0xc000}));

std::vector<float> floats(const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  to_float(tensor, 0, values);
  return values;
}

void rejects(const std::filesystem::path& path, std::initializer_list<std::string_view> parts) {
  check_rejected<checkpoint_error>([&] { Checkpoint{path}; }, parts);
}

TEST_CASE("a directory with one safetensors file") {
  const TemporaryFolder directory;
  directory.write("config.json", llama_json().dump());
  directory.write("model.safetensors", tensor_a);
  const Checkpoint checkpoint(directory.path());
  CHECK(checkpoint.config().hidden_size == 32);
  CHECK(checkpoint.has("a"));
  CHECK_FALSE(checkpoint.has("b"));
  CHECK(floats(checkpoint.tensor("a", {1, 2})) == std::vector<float>{1.5f, -2.0f});

  const std::string place = directory.path().string();
  check_rejected<checkpoint_error>([&] { checkpoint.tensor("b"); }, {place, "\"b\" is missing"});
  check_rejected<checkpoint_error>(
      [&] {
        checkpoint.tensor("a", {2, 1});
      },
      {place, "\"a\"", "shape [1, 2]", "expected [2, 1]"});
  check_rejected<checkpoint_error>([&] { checkpoint.tensor("a", {1}); }, {"expected [1]"});
  check_rejected<checkpoint_error>([&] { checkpoint.tensor("i"); }, {place, "\"i\"", "I32", "F32, F16, BF16"});
}

TEST_CASE("a copy keeps the weights after the original is gone") {
  const TemporaryFolder directory;
  directory.write("config.json", llama_json().dump());
  directory.write("model.safetensors", tensor_a);
  auto original = std::make_unique<Checkpoint>(directory.path());
  const Tensor before = original->tensor("a");
  const Checkpoint copy = *original;
  original.reset();
  CHECK(copy.tensor("a").data == before.data);
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
  index(R"({"a":"x-1.safetensors","b":"x-2.safetensors"})");
  const Checkpoint checkpoint(directory.path());
  CHECK(floats(checkpoint.tensor("a")) == std::vector<float>{1.5f, -2.0f});
  CHECK(floats(checkpoint.tensor("b")) == std::vector<float>{1, -2});
  CHECK_FALSE(checkpoint.has("i"));

  index(R"({"a":"x-2.safetensors"})");
  rejects(directory.path(), {"index.json", "\"a\"", "x-2.safetensors"});
  index(R"({"a":"x-3.safetensors"})");
  rejects(directory.path(), {"x-3.safetensors", "No such file"});
  index(R"({"a":"../x-1.safetensors"})");
  rejects(directory.path(), {"index.json", "plain file name"});
}

TEST_CASE("paths that hold no checkpoint are explained") {
  const TemporaryFolder directory;
  rejects(directory.path() / "absent", {"absent", "No such file"});
  rejects(directory.path(), {"config.json", "No such file"});
  directory.write("config.json", "");
  rejects(directory.path(), {"config.json", "empty"});
  directory.write("config.json", llama_json().dump());
  rejects(directory.path(), {"neither model.safetensors nor model.safetensors.index.json"});
  directory.write("model.safetensors", "");
  rejects(directory.path(), {"model.safetensors", "empty"});
  directory.write("model.safetensors", tensor_a.substr(0, tensor_a.size() - 1));
  rejects(directory.path(), {"model.safetensors", "data_offsets"});
  rejects(directory.write("model.gguf", "GGUF"), {"model.gguf", ".bin"});
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
  rejects(directory.write("half.bin", good.substr(0, good.size() / 2)),
          {"half.bin", std::to_string(good.size() / 2), "needs " + std::to_string(good.size()), "truncated"});
  rejects(directory.write("stub.bin", good.substr(0, 20)), {"stub.bin", "20 bytes"});
  std::string corrupted = good;
  corrupted[8] = 6;  // one layer more
  rejects(directory.write("layers.bin", corrupted), {"layers.bin", "6 layers", "truncated"});
  corrupted[11] = '\x7f';
  rejects(directory.write("many.bin", corrupted), {"many.bin", "n_layers", "1 to 1000"});
}

}  // namespace
}  // namespace llama
