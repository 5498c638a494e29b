#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "examples/llama/program/brief_spinning.hpp"
#include "tests/examples/llama/process.hpp"

namespace llama {
namespace {

constexpr int went_on = 7;

/// What a process with `variable`, or none, becomes when it calls `spin_briefly`: its exit status and what it prints.
std::pair<int, std::string> outcome(const char* variable) {
  const test::TemporaryFolder folder;
  const std::string out = (folder.path() / "out").string();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) ::unsetenv(name);
    if (variable != nullptr) ::setenv(variable, "active", 1);
    std::string texts[] = {"test", "--no-skip", "--test-case=the number of spins is printed"};
    char* argv[] = {texts[0].data(), texts[1].data(), texts[2].data(), nullptr};
    spin_briefly(argv);
    ::_exit(went_on);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return {WEXITSTATUS(status), test::read(out)};
}

TEST_CASE("the number of spins is printed" * doctest::skip()) {
  const char* const count = std::getenv("GOMP_SPINCOUNT");
  std::printf("spins %s\n", count == nullptr ? "none" : count);
}

TEST_CASE("a program goes on" * doctest::skip()) {
  std::string text = "test";
  char* argv[] = {text.data(), nullptr};
  spin_briefly(argv);
  std::printf("it went on\n");
}

TEST_CASE("what the dynamic loader runs goes on: to start once more would be to start the loader") {
  Dl_info loader{};
  if (::dladdr(reinterpret_cast<void*>(::getauxval(AT_BASE)), &loader) == 0) return;  // there is none
  const auto result = test::run_process(
      "/usr/bin/env", {"-u", "OMP_WAIT_POLICY", "-u", "GOMP_SPINCOUNT", loader.dli_fname,
                       std::filesystem::read_symlink("/proc/self/exe"), "--no-skip", "--test-case=a program goes on"});
  CHECK(result.status == 0);
  CHECK(result.out.find("it went on\n") != std::string::npos);
}

TEST_CASE("a program starts once more with threads that spin briefly") {
  const auto [status, text] = outcome(nullptr);
  CHECK(status == 0);
  CHECK(text.find("spins 1000\n") != std::string::npos);
}

TEST_CASE("what the user says about waiting stays") {
  CHECK(outcome("OMP_WAIT_POLICY").first == went_on);
  CHECK(outcome("GOMP_SPINCOUNT").first == went_on);
}

}  // namespace
}  // namespace llama
