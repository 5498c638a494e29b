#include <fcntl.h>
#include <sys/stat.h>

#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/checkpoint/mapped_file.hpp"
#include "support.hpp"

namespace llama {
namespace {

using namespace testing;

TEST_CASE("a mapped file shows the file's bytes") {
  const TemporaryFolder directory;
  const MappedFile file(directory.write("data", "some bytes"));
  REQUIRE(file.bytes().size() == 10);
  CHECK(std::memcmp(file.bytes().data(), "some bytes", 10) == 0);
}

TEST_CASE("files that cannot be mapped give an error that names them") {
  const TemporaryFolder directory;
  const auto rejects = [](const std::filesystem::path& path, std::string_view reason) {
    check_rejected<file_error>([&] { MappedFile{path}; }, {path.string(), reason});
  };
  rejects(directory.path() / "absent", "No such file");
  rejects(directory.write("empty", ""), "the file is empty");
  rejects(directory.path(), "not a regular file");
  const auto pipe = directory.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  rejects(pipe, "not a regular file");
  const auto secret = directory.write("secret", "x");
  std::filesystem::permissions(secret, std::filesystem::perms::none);
  if (::geteuid() != 0)
    rejects(secret, "Permission denied");
  else
    MESSAGE("skipped: root may read every file");
}

}  // namespace
}  // namespace llama
