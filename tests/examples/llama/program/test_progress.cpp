#include <doctest/doctest.h>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>

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

namespace {

/// What `write` writes to stderr, which is a file then.
std::string written(const std::function<void()>& write) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("stderr", "");
  std::FILE* const file = std::fopen(path.c_str(), "w");
  const int before = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  write();
  dup2(before, STDERR_FILENO);
  close(before);
  std::fclose(file);
  return test::read(path);
}

}  // namespace

TEST_CASE("progress: where stderr is no terminal, a line now and then if that is asked for") {
  const std::string text = written([] {
    StatusLine silent;
    StatusLine each(0), seldom(3600);
    silent.show("silent");
    seldom.show("seldom");
    each.show("each\x1b");
    each.show("one");
    each.clear();
  });
  CHECK(text == printable("each\x1b") + "\none\n");
}

TEST_CASE("progress: where stderr is no terminal, the bar writes a line after each interval") {
  const auto advance_twice = [](ProgressBar&& bar) {
    bar.advance(true, "first");
    bar.advance(true, "second");
  };
  CHECK(written([&] { advance_twice(ProgressBar(2, 0)); }) ==
        "[                              ] 0/2  ETA ?  \n"
        "[===============               ] 1/2  ETA ?  first\n"
        "[==============================] 2/2  ETA ?  second\n");
  CHECK(written([&] { advance_twice(ProgressBar(2)); }).empty());  // within the first minute
  const std::string text = written([] {
    ProgressBar bar(2, 0.05);
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    bar.advance(true, "after the interval");
  });
  CHECK(text.ends_with("[===============               ] 1/2  ETA ?  after the interval\n"));
  CHECK(written([] {
          ProgressBar bar(9, 0);
          bar.advance(true, "first");
          bar.expect(3);
          bar.advance(true, "second");
        }).ends_with("[===============               ] 2/4  ETA ?  second\n"));
}
