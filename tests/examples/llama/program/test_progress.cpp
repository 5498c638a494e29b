#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdio>
#include <string>

#include "examples/llama/files/printable.hpp"
#include "examples/llama/program/progress.hpp"
#include "tests/examples/llama/files.hpp"

using namespace llama;

TEST_CASE("progress: the time that is left counts only items of this start") {
  CHECK(progress_text(0, 0, 10, 5) == "[                              ] 0/10  ETA ?");
  CHECK(progress_text(5, 5, 10, 5) == "[===============               ] 5/10  ETA ?");
  CHECK(progress_text(7, 5, 10, 5) == "[=====================         ] 7/10  ETA 8s");  // 2.5 s for each of 3
  CHECK(progress_text(10, 5, 10, 100) == "[==============================] 10/10  ETA 0s");
  CHECK(short_time(59.5) == "1m00s");
  CHECK(short_time(187) == "3m07s");
  CHECK(short_time(3600) == "1h00m");
  CHECK(short_time(7500) == "2h05m");
}

TEST_CASE("progress: where stderr is no terminal, a line now and then if that is asked for") {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("stderr", "");
  std::FILE* const file = std::fopen(path.c_str(), "w");
  const int before = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  StatusLine silent;
  StatusLine each(0), seldom(3600);
  silent.show("silent");
  seldom.show("seldom");
  each.show("each\x1b");
  each.show("one");
  each.clear();
  dup2(before, STDERR_FILENO);
  close(before);
  std::fclose(file);
  CHECK(test::read(path) == printable("each\x1b") + "\none\n");
}
