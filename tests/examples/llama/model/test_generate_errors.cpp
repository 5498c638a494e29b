#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "examples/llama/model/generate_program.hpp"
#include "tests/support/source_folder.hpp"

using namespace llama;

namespace {

/// Checks that a run fails with `status` and a message of one or two lines with all of `parts`, writes no text, and
/// leaves no file behind.
void check_fails(const test::GenerateProgram& program, std::vector<std::string> arguments, int status,
                 std::initializer_list<std::string> parts) {
  for (const char* option : {"--json", "--trace", "--logits"}) {
    if (std::ranges::find(arguments, option) == arguments.end()) {
      arguments.insert(arguments.end(), {option, program.path(option + 2)});
    }
  }
  const std::set<std::string> before = program.files();
  const auto result = program.run(arguments);
  CAPTURE(arguments);
  CAPTURE(result.err);
  CHECK(result.status == status);
  CHECK(result.out.empty());
  CHECK(std::ranges::count(result.err, '\n') == status);  // a mistake in the usage adds where to find help
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(result.err.find(part) != std::string::npos);
  }
  CHECK(program.files() == before);
}

void check_ids_fail(std::vector<std::string> arguments, int status, std::initializer_list<std::string> parts) {
  const test::GenerateProgram program;
  arguments.insert(arguments.begin(), {"--model", test::small_model, "--token-ids", program.path("ids")});
  check_fails(program, arguments, status, parts);
}

/// `bytes` with `value` at `offset`.
template <class Value>
std::string patched(std::string bytes, std::size_t offset, Value value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  return bytes;
}

}  // namespace

TEST_CASE("mistakes in the usage exit with 2 and say what is expected") {
  const test::GenerateProgram program;
  const std::string model = test::small_model;
  const std::string ids = program.path("ids");
  check_fails(program, {"--token-ids", ids}, 2, {"--model is required"});
  check_fails(program, {"--model", model}, 2, {"--prompt", "--prompt-file", "--token-ids"});
  check_fails(program, {"--model", model, "--token-ids", ids, "--prompt", "x"}, 2, {"2 were given"});
  check_fails(program, {"--model", model, "--token-ids", program.path("none")}, 2, {"does not exist", "none"});
  check_fails(program, {"--model", model, "--prompt-file", program.path(".")}, 2, {"is actually a directory"});
  check_fails(program, {"--model", model, "--prompt-file", ""}, 2, {"--prompt-file"});
  check_ids_fail({"--max-tokens", "0"}, 2, {"--max-tokens: 0 is not a whole number from 1 to 1073741824"});
  check_ids_fail({"--max-tokens", "many"}, 2, {"many"});
  check_ids_fail({"--protect-first", "-1"}, 2, {"--protect-first: -1", "from 0 to 2147483647"});
  check_ids_fail({"--protect-last", "0"}, 2, {"--protect-last: 0", "from 1 to 2147483647"});
  check_ids_fail({"--repeats", "0"}, 2, {"--repeats: 0", "at least 1"});
  check_ids_fail({"--threads", "0"}, 2, {"--threads", "1"});
  check_ids_fail({"--dtype", "int8"}, 2, {"--dtype", "int8", "f32", "bf16", "f16"});
  check_ids_fail({"--seed", "-1"}, 2, {"--seed"});
  check_ids_fail({"--seed", "18446744073709551616"}, 2, {"--seed", "from 0 to 18446744073709551615"});
  check_ids_fail({"--top-p", "x"}, 2, {"--top-p"});
  check_ids_fail({"--unknown"}, 2, {"--unknown"});
}

TEST_CASE("values that the model or the library does not allow exit with 1 and say the range") {
  check_ids_fail({"--schedule", "4:0.5"}, 1, {"layer 4 is out of range 1 to 3"});
  check_ids_fail({"--schedule", "1:0.5;2:0.5"}, 1, {"1:0.5;2:0.5", "LAYER:KEEP"});
  check_ids_fail({"--schedule", "1:1.5"}, 1, {"keep 1.5", "(0, 1]"});
  check_ids_fail({"--score", "median"}, 1, {"median", "mean:N"});
  check_ids_fail({"--score", "last+pool:2"}, 1, {"pooling 2", "odd"});
  check_ids_fail({"--temperature", "-1"}, 1, {"temperature -1", "at least 0"});
  check_ids_fail({"--top-p", "0"}, 1, {"top_p 0", "(0, 1]"});
  check_ids_fail({"--max-tokens", "89"}, 1, {"129", "128", "prompt 40 + --max-tokens 89"});
  check_ids_fail({"--max-tokens", "1073741824"}, 1, {"--max-tokens 1073741824 is out of range 1 to 1073741784"});
  CHECK(test::GenerateProgram().run_ids({"--max-tokens", "88"}).status == 0);
  check_ids_fail({"--cuda-graphs"}, 1, {"--cuda-graphs needs --device cuda"});
  check_ids_fail({"--max-tokens", "8", "--context", "9"}, 1, {"--context 9 is out of range: at least 10"});
}

TEST_CASE("prompts that cannot be run") {
  const test::GenerateProgram program;
  const auto check_prompt = [&](const std::string& ids, std::initializer_list<std::string> parts) {
    check_fails(program, {"--model", test::small_model, "--token-ids", program.write("prompt", ids)}, 1, parts);
  };
  check_prompt("", {"0 tokens"});
  check_prompt(" \n", {"0 tokens"});
  check_prompt("[]", {"0 tokens"});
  check_prompt("5\n6 97", {program.path("prompt"), "line 2", "97", "[0, 97)"});
  check_prompt("[5, -1]", {"entry 1", "-1"});
  check_prompt("[5, 6", {program.path("prompt")});
  check_prompt("five", {"five"});
  std::string long_prompt;
  for (int i = 0; i < 128; ++i) long_prompt += "7 ";
  check_prompt(long_prompt, {"128", "prompt 128 + --max-tokens 64"});
  check_fails(program, {"--model", test::small_model, "--prompt", "x"}, 1, {"tokenizer.json", "mha_4_layers"});
  check_fails(program, {"--model", test::small_model, "--token-ids", program.path("ids"), "--chat"}, 1,
              {"--chat needs a text"});
  const std::filesystem::path tiny = lazyllm::test::source_folder() / "examples/models/tiny";
  check_fails(program, {"--model", tiny, "--prompt", "x", "--chat"}, 1,
              {"tokenizer_config.json: there is no chat_template"});
}

TEST_CASE("a failure in the middle of the work leaves no output behind") {
  const test::GenerateProgram program;
  std::string weights = test::read(test::small_model / "model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, weights.data(), sizeof header);
  std::fill(weights.begin() + static_cast<std::ptrdiff_t>(8 + header), weights.end(), '\xFF');  // NaN
  std::filesystem::create_directory(program.path("model"));
  program.write("model/model.safetensors", weights);
  program.write("model/config.json", test::read(test::small_model / "config.json"));
  check_fails(program, {"--model", program.path("model"), "--token-ids", program.path("ids")}, 1, {"not", "finite"});
}

TEST_CASE("outputs that cannot be written fail before the weights are read") {
  const test::GenerateProgram program;
  const std::string folder = program.path("folder");
  std::filesystem::create_directory(folder);
  // The weights of the fifth layer are missing, which shows when they are read.
  std::string config = test::read(test::small_model / "config.json");
  const std::string four_layers = "\"num_hidden_layers\": 4";
  REQUIRE(config.find(four_layers) != std::string::npos);
  config.replace(config.find(four_layers), four_layers.size(), "\"num_hidden_layers\": 5");
  const std::string model = program.path("model");
  std::filesystem::create_directory(model);
  program.write("model/model.safetensors", test::read(test::small_model / "model.safetensors"));
  program.write("model/config.json", config);
  const std::string ids = program.path("ids");
  check_fails(program, {"--model", model, "--token-ids", ids}, 1, {"model.layers.4", "missing"});

  for (const char* option : {"--json", "--trace", "--logits"}) {
    for (const std::string& path : {folder, folder + "/none/file"}) {
      check_fails(program, {"--model", model, "--token-ids", ids, option, path}, 1, {path, "cannot be written"});
    }
    check_fails(program, {"--model", model, "--token-ids", ids, option, "/dev/null"}, 1,
                {"/dev/null", "not a regular file"});
  }
  CHECK(std::filesystem::is_empty(folder));
  check_fails(program, {"--model", model, "--token-ids", ids, "--schedule", "5:0.5"}, 1, {"layer 5 is out of range"});
  check_fails(program, {"--model", model, "--token-ids", ids, "--score", "x"}, 1, {"score 'x'"});
  check_fails(program, {"--model", model, "--token-ids", ids, "--top-p", "2"}, 1, {"top_p 2"});
}

TEST_CASE("an output that is there already stays as it was when the run fails, and is replaced when it succeeds") {
  const test::GenerateProgram program;
  program.write("old", "old");
  CHECK(program.run_ids({"--json", program.path("old"), "--schedule", "9:0.5"}).status == 1);
  CHECK(test::read(program.path("old")) == "old");
  CHECK(program.run_ids({"--json", program.path("old"), "--max-tokens", "2"}).status == 0);
  CHECK(test::read(program.path("old")).starts_with("{"));
}

TEST_CASE("an output that cannot be written is an error and does not lose the others") {
  const test::GenerateProgram program;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small{1024, before.rlim_max};  // bytes of a file: enough for the 97 logits, and for LLVM's OpenMP
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto result =
      program.run_ids({"--max-tokens", "1", "--json", program.path("json"), "--logits", program.path("logits")});
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CAPTURE(result.err);
  CHECK(result.status == 1);
  CHECK(result.err.find("json: the file cannot be written: File too large") != std::string::npos);
  CHECK(test::read(program.path("logits")).size() == 97 * sizeof(float));
  CHECK(program.files() == std::set<std::string>{"ids", "logits"});
}

TEST_CASE("damaged Hugging Face directories") {
  const test::GenerateProgram program;
  const std::string weights = test::read(test::small_model / "model.safetensors");
  const std::string config = test::read(test::small_model / "config.json");
  std::filesystem::create_directory(program.path("model"));
  const auto check_model = [&](std::initializer_list<std::string> parts) {
    check_fails(program, {"--model", program.path("model"), "--token-ids", program.path("ids")}, 1, parts);
  };
  check_model({"config.json"});
  program.write("model/config.json", config);
  check_model({program.path("model"), "model.safetensors"});
  program.write("model/model.safetensors", weights.substr(0, weights.size() - 1));
  check_model({"model.safetensors"});
  program.write("model/model.safetensors", weights.substr(0, 5));
  check_model({"model.safetensors", "5 bytes"});
  program.write("model/model.safetensors", patched(weights, 0, std::uint64_t{1} << 60));
  check_model({"model.safetensors"});
  program.write("model/model.safetensors", weights);
  program.write("model/config.json", config.substr(0, config.size() / 2));
  check_model({"config.json"});
  check_fails(program, {"--model", program.path("none"), "--token-ids", program.path("ids")}, 1, {"none"});
}

TEST_CASE("stories260K: truncated and corrupted copies of the model and the tokenizer") {
  const auto folder = test::real_input("stories260K");
  if (!std::filesystem::exists(folder)) {
    MESSAGE("skipped: the model stories260K is absent");
    return;
  }
  const test::GenerateProgram program;
  const std::string model = test::read(folder / "stories260K.bin");
  const std::string tokenizer = test::read(folder / "tok512.bin");
  const auto check_files = [&](const std::string& model_bytes, const std::string& tokenizer_bytes,
                               std::initializer_list<std::string> parts) {
    const std::string model_path = program.write("model.bin", model_bytes);
    const std::string tokenizer_path = program.write("tokenizer.bin", tokenizer_bytes);
    check_fails(program, {"--model", model_path, "--tokenizer", tokenizer_path, "--prompt", "Once"}, 1, parts);
  };
  for (const std::size_t size : {std::size_t{28}, std::size_t{1000}, model.size() - 1}) {
    check_files(model.substr(0, size), tokenizer,
                {"model.bin", std::to_string(size), std::to_string(model.size()), "truncated"});
  }
  check_files("", tokenizer, {"model.bin", "empty"});
  check_files(model.substr(0, 27), tokenizer, {"model.bin", "27 bytes"});
  check_files(model + "x", tokenizer, {"model.bin", std::to_string(model.size() + 1)});
  check_files(patched(model, 0, std::int32_t{-64}), tokenizer, {"model.bin", "dim", "-64"});
  check_files(patched(model, 8, std::int32_t{2000000000}), tokenizer, {"model.bin", "n_layers", "2000000000"});
  check_files(patched(model, 16, std::int32_t{3}), tokenizer, {"model.bin", "n_heads", "3"});

  for (const std::size_t size : {std::size_t{6}, std::size_t{3000}, tokenizer.size() - 1}) {
    check_files(model, tokenizer.substr(0, size), {"tokenizer.bin", "entry"});
  }
  check_files(model, "", {"tokenizer.bin"});
  check_files(model, tokenizer.substr(0, 3), {"tokenizer.bin"});
  check_files(model, patched(tokenizer, 8, std::int32_t{-1}), {"tokenizer.bin", "entry 0", "-1"});
  check_files(model, patched(tokenizer, 8, std::int32_t{1 << 30}), {"tokenizer.bin", "entry 0", "1073741824"});
  check_files(model, std::string(100, 'x'), {"tokenizer.bin"});

  const std::string model_path = folder / "stories260K.bin";
  check_fails(program, {"--model", model_path, "--prompt", "Once"}, 1, {"--tokenizer is needed", model_path});
  check_fails(program, {"--model", model_path, "--tokenizer", program.path("none"), "--prompt", "Once"}, 1, {"none"});
}

TEST_CASE("a device that is not there, or not in this build, is reported, and what cannot run on the CPU") {
  check_ids_fail({"--device", "gpu"}, 2, {"--device", "cpu", "cuda"});
  check_ids_fail({"--dtype", "f16"}, 1, {"--dtype f16 is not one of f32 and bf16, the types on the CPU"});
#ifdef LLAMA_HAS_CUDA
  const test::GenerateProgram program;
  if (program.run_ids({"--device", "cuda", "--max-tokens", "1"}).status == 0) {
    MESSAGE("skipped: there is a CUDA device");
    return;
  }
  check_ids_fail({"--device", "cuda"}, 1, {"--device cuda: no CUDA device: "});
#else
  check_ids_fail({"--device", "cuda"}, 1, {"--device cuda: this build has no CUDA", "-DLAZYLLM_CUDA=ON"});
#endif
}
