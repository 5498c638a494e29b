#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

#include "examples/llama/kernels/cpu/team.hpp"

namespace llama::test {
namespace {

TEST_CASE("every part is done once, and no range goes across a multiple of the grain") {
  for (const int threads : {1, 2, 3, 8}) {
    for (const Index parts : {0, 1, 2, 3, 17, 1000, 70000}) {
      for (const Index grain : {1, 2, 5}) {
        CAPTURE(threads);
        CAPTURE(parts);
        CAPTURE(grain);
        std::vector<std::atomic<int>> done(static_cast<std::size_t>(parts));
        std::atomic<int> wrong = 0;
        share_parts(threads, parts, grain, [&](Index first, Index last, int worker) {
          if (first >= last || first / grain != (last - 1) / grain || worker < 0 || worker >= threads) ++wrong;
          for (Index part = first; part < last; ++part) ++done[static_cast<std::size_t>(part)];
        });
        CHECK(wrong == 0);
        for (const auto& times : done) REQUIRE(times == 1);
      }
    }
  }
}

TEST_CASE("thousands of calls after each other, of changing sizes, see only their own work") {
  for (Index call = 0; call < 20000; ++call) {
    const Index parts = call % 7 + 1;
    const int threads = static_cast<int>(call % 3) + 1;
    std::vector<Index> results(static_cast<std::size_t>(parts));
    std::atomic<int> strangers = 0;
    share_parts(threads, parts, 1, [&](Index part, Index, int worker) {
      results[static_cast<std::size_t>(part)] = call;
      if (worker >= threads) ++strangers;
    });
    for (const Index result : results) REQUIRE(result == call);
    REQUIRE(strangers == 0);
  }
}

TEST_CASE("a worker does one range at a time") {
  std::vector<std::atomic<int>> running(3);
  std::atomic<int> most = 0;
  share_parts(3, 300, 1, [&](Index, Index, int worker) {
    auto& own = running[static_cast<std::size_t>(worker)];
    if (++own > most) most = own.load();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    --own;
  });
  CHECK(most == 1);
}

/// Of all threads of this process.
double processor_ms() { return 1000.0 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

TEST_CASE("who waits for long leaves the processor to others") {
  constexpr std::chrono::milliseconds little(20), long_time(300);
  const auto sleep = [&](Index part, Index, int) { std::this_thread::sleep_for(part == 0 ? little : long_time); };
  double before = processor_ms();
  share_parts(3, 2, 1, sleep);  // a caller without work and a helper without work wait for the other part
  CHECK(processor_ms() - before < 100);
  before = processor_ms();
  std::this_thread::sleep_for(long_time);  // helpers wait for the next call
  CHECK(processor_ms() - before < 100);
}

TEST_CASE("several threads work, and callers at the same time do not disturb each other") {
  std::atomic<Index> sum = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int call = 0; call < 500; ++call) share_parts(3, 20, 1, [&](Index part, Index, int) { sum += part; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(sum == 4 * 500 * 190);

  std::atomic<int> together = 0, most = 0;
  share_parts(2, 2, 1, [&](Index, Index, int) {
    const int now = ++together;
    if (now > most) most = now;
    for (int i = 0; i < 60'000 && together < 2 && most < 2; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --together;
  });
  CHECK(most == 2);
}

TEST_CASE("the caller does the parts of a thread that is held up") {
  std::atomic<int> by_caller = 0;
  share_parts(2, 10, 1, [&](Index, Index, int worker) {
    if (worker == 0) ++by_caller;
    while (worker == 1 && by_caller < 9) std::this_thread::yield();
  });
  CHECK(by_caller >= 9);
}

}  // namespace
}  // namespace llama::test
