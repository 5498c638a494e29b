#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "examples/llama/files/file_error.hpp"
#include "examples/llama/program/input_files.hpp"
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
  const fs::path none = folder.path() / "none";  // what permissions refuse they do not refuse to root
  const std::string message = none.string() + ": cannot read the folder: No such file or directory";
  CHECK_THROWS_WITH_AS(entries_of(none), message.c_str(), file_error);
}
