#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "examples/llama/files/file_error.hpp"
#include "examples/llama/program/input_files.hpp"
#include "examples/llama/program/model_files.hpp"
#include "tests/examples/llama/files.hpp"

using namespace llama;
namespace fs = std::filesystem;

TEST_CASE("inputs: what is no file is not left out, so that opening it says what is wrong") {
  const test::TemporaryFolder folder;
  folder.write("b.jsonl", "{}");
  folder.write("notes.txt", "");
  fs::create_directory(folder.path() / "a.jsonl");
  fs::create_symlink("none", folder.path() / "c.jsonl");
  REQUIRE(::mkfifo((folder.path() / "d.jsonl").c_str(), 0600) == 0);
  std::string names;
  for (const fs::path& file : files_at(folder.path(), {".jsonl"})) names += file.filename().string() + ' ';
  CHECK(names == "a.jsonl b.jsonl c.jsonl d.jsonl ");
}

TEST_CASE("inputs: a folder that cannot be read is named with the reason") {
  const test::TemporaryFolder folder;
  folder.write("a.jsonl", "{}");
  const std::string message = folder.path().string() + ": cannot read the folder: Too many open files";
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{0, before.rlim_max};  // unlike permissions it holds for root too
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  CHECK_THROWS_WITH_AS(files_at(folder.path(), {".jsonl"}), message.c_str(), file_error);
  CHECK_THROWS_WITH_AS(model_files(folder.path()), message.c_str(), file_error);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}
