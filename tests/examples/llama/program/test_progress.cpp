#include <doctest/doctest.h>

#include "examples/llama/program/progress.hpp"

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
