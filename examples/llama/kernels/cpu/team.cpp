#include "examples/llama/kernels/cpu/team.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace llama {
namespace {

constexpr int max_workers = 256;
constexpr Index max_parts = 65535;

/// How often a thread looks for a change before it sleeps, some ten microseconds in all: longer than most pauses
/// between two pieces of work, and little of what another process would do meanwhile.
constexpr int looks = 1000;

/// Waits until `value` is no longer `old`.
void wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  for (int i = 0; i < looks; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
#ifdef __x86_64__
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // a pause of a few cycles, too
#endif
  }
  value.wait(old, std::memory_order_acquire);
}

/// The parts of a worker that are left, and the round that they are of: one word for the processor.
struct alignas(8) Range {
  std::uint32_t round = 0;
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

class Team {
 public:
  ~Team() {
    stop_.store(true, std::memory_order_relaxed);
    call();
    for (std::thread& helper : helpers_) helper.join();
  }

  void share(int threads, Index parts, Index grain, PartsBody body) {
    const std::unique_lock lock(busy_, std::try_to_lock);
    const int workers = std::min(threads, max_workers);
    if (workers == 1 || parts <= grain || !lock) {
      for (Index first = 0; first < parts; first += grain) {
        body.call(body.object, first, std::min(first + grain, parts), 0);
      }
      return;
    }
    const Index most = max_parts / grain * grain;
    for (Index begin = 0; begin < parts; begin += most)
      share(workers, begin, std::min(begin + most, parts), grain, body);
  }

 private:
  /// The parts of [begin, end), at most `max_parts`.
  void share(int workers, Index begin, Index end, Index grain, PartsBody body) {
    const Index parts = end - begin;
    while (std::ssize(helpers_) < workers - 1) {
      helpers_.emplace_back(&Team::help, this, static_cast<int>(helpers_.size()) + 1);
    }
    begin_.store(begin, std::memory_order_relaxed);
    object_.store(body.object, std::memory_order_relaxed);
    call_.store(body.call, std::memory_order_relaxed);
    grain_.store(grain, std::memory_order_relaxed);
    workers_.store(workers, std::memory_order_relaxed);
    left_.store(static_cast<std::uint32_t>(parts), std::memory_order_relaxed);
    ++round_;
    for (int i = 0; i < workers; ++i) {
      ranges_[static_cast<std::size_t>(i)].value.store({.round = round_,
                                                        .first = static_cast<std::uint16_t>(parts * i / workers),
                                                        .last = static_cast<std::uint16_t>(parts * (i + 1) / workers)},
                                                       std::memory_order_release);
    }
    call();
    work(0);
    while (const std::uint32_t left = left_.load(std::memory_order_acquire)) wait_for_change(left_, left);
  }

  void call() {
    calls_.fetch_add(1, std::memory_order_release);
    calls_.notify_all();
  }

  void help(int worker) {
    for (std::uint32_t seen = 0; !stop_.load(std::memory_order_relaxed);) {
      wait_for_change(calls_, seen);
      seen = calls_.load(std::memory_order_acquire);
      work(worker);
    }
  }

  void work(int worker) {
    const int workers = workers_.load(std::memory_order_relaxed);
    for (int i = 0; i < workers; ++i) {
      const int owner = (worker + i) % workers;
      while (take(ranges_[static_cast<std::size_t>(owner)].value, worker, owner == worker)) {
      }
    }
  }

  /// Does some parts of a range, of its owner the first ones, else the last ones. False: there are none.
  bool take(std::atomic<Range>& value, int worker, bool own) {
    Range range = value.load(std::memory_order_acquire);
    while (range.first < range.last) {
      // What belongs to another round is not used: the exchange fails, for a round ends when all its parts are done.
      const void* const object = object_.load(std::memory_order_relaxed);
      const auto call = call_.load(std::memory_order_relaxed);
      const Index grain = grain_.load(std::memory_order_relaxed);
      const Index begin = begin_.load(std::memory_order_relaxed);
      if (worker >= workers_.load(std::memory_order_relaxed)) return false;
      Index first = range.first, last = range.last;
      Range rest = range;
      if (own) {
        last = std::min((first / grain + 1) * grain, last);
        rest.first = static_cast<std::uint16_t>(last);
      } else {
        first = std::max((last - 1) / grain * grain, first);
        rest.last = static_cast<std::uint16_t>(first);
      }
      if (!value.compare_exchange_weak(range, rest, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      call(object, begin + first, begin + last, worker);
      const auto done = static_cast<std::uint32_t>(last - first);
      if (left_.fetch_sub(done, std::memory_order_acq_rel) == done) left_.notify_one();
      return true;
    }
    return false;
  }

  struct alignas(64) Place {
    std::atomic<Range> value;
  };

  std::mutex busy_;
  std::vector<std::thread> helpers_;
  std::uint32_t round_ = 0;
  std::atomic<bool> stop_ = false;
  std::atomic<const void*> object_ = nullptr;
  std::atomic<void (*)(const void*, Index, Index, int)> call_ = nullptr;
  std::atomic<Index> begin_ = 0;
  std::atomic<Index> grain_ = 1;
  std::atomic<int> workers_ = 0;
  alignas(64) std::atomic<std::uint32_t> calls_ = 0;
  alignas(64) std::atomic<std::uint32_t> left_ = 0;  ///< parts that are not done
  std::array<Place, max_workers> ranges_;
};

}  // namespace

void share_parts(int threads, Index parts, Index grain, PartsBody body) {
  static Team team;
  team.share(threads, parts, grain, body);
}

}  // namespace llama
