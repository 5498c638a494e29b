#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <set>
#include <string>

#include "examples/llama/files/output_file.hpp"
#include "tests/examples/llama/files.hpp"

using namespace llama;
namespace fs = std::filesystem;

namespace {

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

}  // namespace

TEST_CASE("output: nothing is there until all of it is") {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "out";
  const OutputFile file(path);
  CHECK(files_in(folder.path()).empty());
  file.commit("first");
  CHECK(test::read(path) == "first");
  file.commit("second");
  CHECK(test::read(path) == "second");
  CHECK(files_in(folder.path()) == std::set<std::string>{"out"});
  const mode_t mask = ::umask(0);
  ::umask(mask);
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == (0666 & ~mask));
}

TEST_CASE("output: a file that is replaced keeps its mode") {
  const test::TemporaryFolder folder;
  const fs::path path = folder.write("out", "old");
  for (const mode_t mode : {0600U, 0640U, 0666U, 0444U, 0755U}) {
    CAPTURE(mode);
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    OutputFile(path).commit("new");
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == mode);
    CHECK(test::read(path) == "new");
  }
}

TEST_CASE("output: no name beside it is written, followed or removed") {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "out";
  folder.write("precious", "mine");
  fs::create_symlink("precious", folder.path() / "out.part");
  OutputFile(path).commit("text");
  CHECK(test::read(path) == "text");
  CHECK(fs::symlink_status(path).type() == fs::file_type::regular);
  CHECK(test::read(folder.path() / "precious") == "mine");
  CHECK(fs::is_symlink(folder.path() / "out.part"));
}

TEST_CASE("output: two at once each write a whole file") {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "out";
  const OutputFile one(path), two(path);
  one.commit("a long text of the first");
  two.commit("short");
  CHECK(test::read(path) == "short");
  one.commit("a long text of the first");
  CHECK(test::read(path) == "a long text of the first");
  CHECK(files_in(folder.path()) == std::set<std::string>{"out"});
}

TEST_CASE("output: what cannot be written is refused before there is anything to write") {
  const test::TemporaryFolder folder;
  const auto refused = [](const fs::path& path, const std::string& reason) {
    CAPTURE(path);
    CHECK_THROWS_WITH_AS(OutputFile{path}, (path.string() + ": the file cannot be written: " + reason).c_str(),
                         file_error);
  };
  fs::create_directory(folder.path() / "folder");
  fs::create_symlink("target", folder.path() / "link");
  REQUIRE(::mkfifo((folder.path() / "pipe").c_str(), 0600) == 0);
  const std::set<std::string> before = files_in(folder.path());
  for (const char* name : {"folder", "link", "pipe", ".", ".."}) {
    refused(folder.path() / name, "it is there and not a regular file");
  }
  refused(folder.path() / "folder/", "it names a directory");
  refused("/dev/full", "it is there and not a regular file");
  refused(folder.path() / "none/file", "No such file or directory");
  refused(folder.path() / "pipe/file", "Not a directory");
  refused(folder.path() / std::string(300, 'n'), "File name too long");
  CHECK_THROWS_WITH_AS(OutputFile{""}, "an output file has an empty name", file_error);
  CHECK(files_in(folder.path()) == before);
  const fs::path longest = folder.path() / std::string(255, 'n');
  OutputFile(longest).commit("text");
  CHECK(test::read(longest) == "text");
}

TEST_CASE("output: where the disk is full, the old file stays and nothing else does") {
  const test::TemporaryFolder folder;
  const fs::path path = folder.write("out", "old");
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {  // a limit on the size of files stands for a full disk
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100, 100};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      OutputFile(path).commit(std::string(1000, 'x'));
    } catch (const file_error& error) {
      ::_exit(std::string(error.what()).ends_with(": the file cannot be written: File too large") ? 7 : 8);
    }
    ::_exit(9);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
  CHECK(test::read(path) == "old");
  CHECK(files_in(folder.path()) == std::set<std::string>{"out"});
}

TEST_CASE("output: a signal while it is written ends the program after the file is whole") {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "out";
  const std::string text(8'000'000, 'x');
  for (const int signal : {SIGINT, SIGTERM}) {
    folder.write("out", "old");
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      std::signal(signal, SIG_DFL);  // doctest has handlers of its own
      const OutputFile file(path);
      for (;;) file.commit(text);
    }
    for (int i = 0; i < 60'000 && fs::file_size(path) != text.size(); ++i) ::usleep(1000);
    ::usleep(20'000);  // into one of the next commits
    ::kill(child, signal);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == signal);
    CHECK(fs::file_size(path) == text.size());
    CHECK(files_in(folder.path()) == std::set<std::string>{"out"});
  }
}
