#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "examples/llama/files/file_error.hpp"
#include "examples/llama/program/model_files.hpp"
#include "tests/examples/llama/files.hpp"

using namespace llama;
namespace fs = std::filesystem;

TEST_CASE("outputs: none is another output or an input, by whatever name") {
  const test::TemporaryFolder folder;
  const fs::path input = folder.write("input", "mine");
  fs::create_directory(folder.path() / "sub");
  fs::create_symlink("input", folder.path() / "link");
  fs::create_hard_link(input, folder.path() / "hard");
  const auto refused = [&](const fs::path& a, const fs::path& b, const fs::path& in, const std::string& other) {
    CAPTURE(a);
    CAPTURE(b);
    CHECK_THROWS_WITH_AS(check_apart({{"--json", a}, {"--trace", b}}, {{"--data", in}}),
                         doctest::Contains((a.string() + ": --json would write over what " + other).c_str()),
                         file_error);
  };
  const fs::path out = folder.path() / "out";  // does not exist
  refused(out, out, input, "--trace names: ");
  refused(out, folder.path() / "sub/../out", input, "--trace names: ");
  refused(out, fs::relative(out), input, "--trace names: ");
  refused(out, folder.path() / "./out", input, "--trace names: ");
  for (const char* name : {"input", "link", "hard", "sub/../input"}) {
    refused(folder.path() / name, out, input, "--data names: ");
  }
  check_apart({{"--json", out}, {"--trace", folder.path() / "sub/out"}, {"--logits", ""}, {"--report", ""}},
              {{"--data", input}, {"--prompts", ""}});
}

TEST_CASE("outputs: a file of the model's folder is an input, another file in it is not") {
  const test::TemporaryFolder folder;
  for (const char* name : {"config.json", "tokenizer.json", "part-1.safetensors", "results.json"}) {
    folder.write(name, "{}");
  }
  const auto inputs = named_files("--model", model_files(folder.path()));
  CHECK(inputs.size() == 3);
  for (const char* name : {"config.json", "tokenizer.json", "part-1.safetensors"}) {
    CHECK_THROWS_WITH_AS(check_apart({{"--json", folder.path() / name}}, inputs), doctest::Contains("--model names"),
                         file_error);
  }
  check_apart({{"--json", folder.path() / "results.json"}}, inputs);
}

TEST_CASE("outputs: none lies where the next run would read it as data") {
  const test::TemporaryFolder folder;
  fs::create_directory(folder.path() / "data");
  fs::create_symlink("data", folder.path() / "link");
  const fs::path data = folder.path() / "data";
  for (const fs::path& path :
       {data / "log.jsonl", data / "log.txt", folder.path() / "link/log.jsonl", fs::relative(data / "log.jsonl")}) {
    CAPTURE(path);
    CHECK_THROWS_WITH_AS(check_outside({{"--json", ""}, {"--resume", path}}, data, {".jsonl", ".txt"}),
                         doctest::Contains((path.string() + ": --resume lies in the folder ").c_str()), file_error);
  }
  check_outside({{"--json", data / "out.json"}, {"--resume", folder.path() / "log.jsonl"}}, data, {".jsonl", ".txt"});
  check_outside({{"--json", data / "out.txt"}}, data, {".jsonl"});
  check_outside({{"--resume", data / "log.jsonl"}}, folder.write("one.jsonl", "{}"), {".jsonl"});
}
