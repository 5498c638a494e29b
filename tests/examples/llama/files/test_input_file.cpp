#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <string>
#include <thread>

#include "examples/llama/files/input_file.hpp"
#include "tests/examples/llama/files.hpp"

using namespace llama;

namespace {

void check_refused(const std::filesystem::path& path, InputKind kind, const char* reason) {
  CHECK_THROWS_WITH_AS(read_input(path, kind), (path.string() + ": " + reason).c_str(), file_error);
}

}  // namespace

TEST_CASE("input: all bytes of a file, and of a pipe where it may be one") {
  const test::TemporaryFolder folder;
  const std::string text = std::string(200'000, 'x') + '\0' + "\n";
  CHECK(read_input(folder.write("file", text)) == text);
  CHECK(read_input(folder.write("empty", "")).empty());
  const auto pipe = folder.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::jthread writer([&] {  // opening waits for the reader
    const Descriptor out(::open(pipe.c_str(), O_WRONLY | O_CLOEXEC));
    for (std::size_t at = 0; at < text.size();) {
      const auto count = ::write(out.get(), text.data() + at, text.size() - at);
      if (count <= 0) return;
      at += static_cast<std::size_t>(count);
    }
  });
  CHECK(read_input(pipe, InputKind::file_or_pipe) == text);
}

TEST_CASE("input: what is no file is refused at once and by name") {
  const test::TemporaryFolder folder;
  const auto pipe = folder.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  check_refused(pipe, InputKind::regular_file, "not a regular file");
  check_refused(folder.path(), InputKind::regular_file, "not a regular file");
  check_refused("/dev/zero", InputKind::regular_file, "not a regular file");
  check_refused("/dev/zero", InputKind::file_or_pipe, "not a regular file or pipe");
  check_refused(folder.path() / "none", InputKind::file_or_pipe, "cannot open the file: No such file or directory");
  check_refused("/proc/self/mem", InputKind::regular_file, "cannot be read: Input/output error");
  check_refused(folder.path() / std::string(300, 'n'), InputKind::regular_file,
                "cannot open the file: File name too long");
}

TEST_CASE("input: a file that is too large is refused, not read until memory ends") {
  const test::TemporaryFolder folder;
  const auto path = folder.write("large", "x");
  std::filesystem::resize_file(path, max_input_bytes + 2);  // a hole: takes no space
  check_refused(path, InputKind::regular_file, "holds more than 1073741824 bytes, the most that are read");
}
