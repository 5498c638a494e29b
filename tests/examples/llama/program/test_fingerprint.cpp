#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "examples/llama/files/file_error.hpp"
#include "examples/llama/program/fingerprint.hpp"
#include "examples/llama/program/model_files.hpp"
#include "tests/examples/llama/files.hpp"

using namespace llama;
namespace fs = std::filesystem;

namespace {

std::uint64_t of(const fs::path& model, const fs::path& tokenizer = {}) {
  return fingerprint_of(model_files(model, tokenizer));
}

}  // namespace

TEST_CASE("fingerprint: any bit of a small model's weights, configuration and tokenizer counts") {
  const test::TemporaryFolder folder;
  const std::string weights(4'000'003, 'w');
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
                           "tokenizer.model", "model.safetensors.index.json"}) {
    folder.write(name, std::string("{} ") + name);
  }
  folder.write("model.safetensors", weights);
  const std::uint64_t before = of(folder.path());
  folder.write("README.md", "no part of the model");
  CHECK(of(folder.path()) == before);
  for (const std::size_t place :
       {std::size_t{0}, std::size_t{70'000}, weights.size() / 2, weights.size() - 14, weights.size() - 1}) {
    CAPTURE(place);
    std::string changed = weights;
    changed[place] = 'v';
    folder.write("model.safetensors", changed);
    CHECK(of(folder.path()) != before);
  }
  folder.write("model.safetensors", weights);
  CHECK(of(folder.path()) == before);
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
                           "tokenizer.model", "model.safetensors.index.json"}) {
    CAPTURE(name);
    const std::string text = test::read(folder.path() / name);
    folder.write(name, text + "\n");
    CHECK(of(folder.path()) != before);
    folder.write(name, text);
  }
  const test::TemporaryFolder other;
  other.write("tokenizer.json", "{}");
  const std::uint64_t with_other = of(folder.path(), other.path());
  CHECK(with_other != before);
  CHECK(of(folder.path(), other.path() / "tokenizer.json") == with_other);
  other.write("generation_config.json", "{}");
  CHECK(of(folder.path(), other.path() / "tokenizer.json") != with_other);
}

TEST_CASE("fingerprint: of a large file, samples up to its last byte") {
  const test::TemporaryFolder folder;
  const auto path = folder.write("model.bin", "x");
  const std::uintmax_t size = (std::uintmax_t{200} << 20) + 12345;
  fs::resize_file(path, size);  // a hole: takes no space
  const std::uint64_t before = of(path);
  for (const std::uintmax_t place : {std::uintmax_t{0}, size - 14, size - 1}) {
    CAPTURE(place);
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(place)).put('y');
    }
    CHECK(of(path) != before);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(place)).put(place == 0 ? 'x' : '\0');
  }
  CHECK(of(path) == before);
}

TEST_CASE("fingerprint: what is no file is refused at once") {
  const test::TemporaryFolder folder;
  const auto pipe = folder.path() / "tokenizer.json";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(of(folder.path()), (pipe.string() + ": not a regular file").c_str(), file_error);
}
