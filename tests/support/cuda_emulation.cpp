#include "support/cuda_emulation.hpp"

#include <ucontext.h>
#ifdef LAZYLLM_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace lazyllm::test::cuda_emulation {
namespace {

struct Stream {
  std::deque<std::function<void()>> work;
  std::size_t enqueued = 0;

  void run_until(std::size_t number) {
    while (enqueued - work.size() < number) {
      const auto next = std::move(work.front());
      work.pop_front();
      next();
    }
  }
  void run_all() { run_until(enqueued); }
};

/// The end of the work that is on a stream at some time.
struct EventMark {
  Stream* stream;
  std::size_t number;
};

struct Everything {
  ~Everything() {
    for (Stream& stream : streams) stream.run_all();
  }

  std::deque<Stream> streams = std::deque<Stream>(1);  // the first is the default stream
  std::set<const void*> pinned;
  Counters counters;
  int failing_allocation = -1;
  int failing_call = -1;
  cudaError_t last_error = cudaSuccess;
};

Everything& everything() {
  static Everything everything;
  return everything;
}

Stream& stream_of(cudaStream_t stream) {
  return stream == nullptr ? everything().streams.front() : *reinterpret_cast<Stream*>(stream);
}

cudaError_t failed(cudaError_t code) { return everything().last_error = code; }

/// Counts a call; its result.
cudaError_t call() { return fails() ? failed(cudaErrorUnknown) : cudaSuccess; }

cudaError_t allocate(void** memory, std::size_t bytes) {
  const cudaError_t code = call();
  if (everything().counters.allocations++ == everything().failing_allocation) return failed(cudaErrorMemoryAllocation);
  if (code != cudaSuccess) return code;
  everything().counters.allocated_bytes += bytes;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, 0xff, bytes);  // floats of all types that are not a number
  return cudaSuccess;
}

#ifdef LAZYLLM_THREAD_SANITIZER
// The sanitizer's view of a thread of a block: one of its own, that is ordered with the others by barriers alone.
using Watched = void*;
Watched new_watched() { return __tsan_create_fiber(0); }
LAZYLLM_UNWATCHED Watched watched_scheduler() {
  static const Watched scheduler = __tsan_get_current_fiber();
  return scheduler;
}
LAZYLLM_UNWATCHED void watch(Watched thread) { __tsan_switch_to_fiber(thread, __tsan_switch_to_fiber_no_sync); }
LAZYLLM_UNWATCHED void leave_for(void* barrier) { __tsan_release(barrier); }
LAZYLLM_UNWATCHED void come_from(void* barrier) { __tsan_acquire(barrier); }
#else
using Watched = char;
Watched new_watched() { return {}; }
Watched watched_scheduler() { return {}; }
void watch(Watched) {}
void leave_for(void*) {}
void come_from(void*) {}
#endif

// Taken in turn: threads arrive at the next barrier while others have not left the last one.
char block_barriers[2];
char block_start;
char block_end;

enum class State { ready, at_block_barrier, at_warp_barrier, done };

struct Fiber {
  static constexpr std::size_t stack_bytes = 64 * 1024;
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
  ucontext_t context{};
  State state = State::ready;
  std::size_t exchanges = 0;
  std::size_t barriers = 0;
  Watched watched = new_watched();
};

/// Of two numbers below `count`, now the one comes first and now the other.
class Order {
 public:
  LAZYLLM_UNWATCHED explicit Order(unsigned count) : count_(count) {
    static std::minstd_rand random;
    const auto number = static_cast<unsigned>(random());
    upward_ = number % 2 == 0;
    start_ = number / 2 % count;
  }
  LAZYLLM_UNWATCHED unsigned operator[](unsigned i) const {
    return (upward_ ? start_ + i : start_ + count_ - i) % count_;
  }

 private:
  unsigned count_;
  unsigned start_;
  bool upward_;
};

struct Warp {
  std::uint64_t values[2][32];
};

std::vector<Fiber> fibers(1024);
std::vector<Warp> warps(32);
ucontext_t scheduler;
const std::function<void()>* thread_body;

LAZYLLM_UNWATCHED void back_to_scheduler(Fiber& fiber, State state) {
  fiber.state = state;
  watch(watched_scheduler());
  swapcontext(&fiber.context, &scheduler);
}

LAZYLLM_UNWATCHED void run_thread() {
  come_from(&block_start);
  (*thread_body)();
  leave_for(&block_end);
  back_to_scheduler(fibers[threadIdx.x], State::done);
}

/// Lets the threads that wait at `barrier` go on if all that have not ended wait there.
LAZYLLM_UNWATCHED bool release(unsigned first, unsigned last, State barrier) {
  bool waiting = false;
  for (unsigned t = first; t < last; ++t) {
    if (fibers[t].state != barrier && fibers[t].state != State::done) return false;
    waiting |= fibers[t].state == barrier;
  }
  for (unsigned t = first; t < last; ++t) {
    if (fibers[t].state == barrier) fibers[t].state = State::ready;
  }
  return waiting;
}

}  // namespace

void enqueue(cudaStream_t stream, std::function<void()> work) {
  stream_of(stream).work.push_back(std::move(work));
  ++stream_of(stream).enqueued;
}

void launched(std::uint64_t threads) {
  if (fails()) throw cuda_error("lazyllm: kernel launch: unknown error");
  ++everything().counters.launches;
  everything().counters.threads += threads;
}

bool fails() { return everything().counters.calls++ == everything().failing_call; }

LAZYLLM_UNWATCHED void run_block(unsigned threads, const std::function<void()>& body) {
  if (threads == 0 || threads % 32 != 0) throw std::logic_error("a block is not of whole warps");
  thread_body = &body;
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = fibers[t];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = Fiber::stack_bytes;
    makecontext(&fiber.context, run_thread, 0);
    fiber.state = State::ready;
    fiber.exchanges = 0;
    fiber.barriers = 0;
  }
  watched_scheduler();
  leave_for(&block_start);
  do {
    const Order warp_order(threads / 32);
    for (unsigned w = 0; w < threads / 32; ++w) {
      const unsigned first = 32 * warp_order[w];
      do {
        const Order lane_order(32);
        for (unsigned i = 0; i < 32; ++i) {
          threadIdx.x = first + lane_order[i];
          Fiber& fiber = fibers[threadIdx.x];
          if (fiber.state != State::ready) continue;
          watch(fiber.watched);
          swapcontext(&scheduler, &fiber.context);
        }
      } while (release(first, first + 32, State::at_warp_barrier));
    }
  } while (release(0, threads, State::at_block_barrier));
  come_from(&block_end);
  for (unsigned t = 0; t < threads; ++t) {
    if (fibers[t].state != State::done) throw std::logic_error("the threads of a block wait at different barriers");
  }
}

// A warp's exchange of values keeps no other accesses apart.
LAZYLLM_UNWATCHED const std::uint64_t* exchange(std::uint64_t value) {
  Fiber& fiber = fibers[threadIdx.x];
  std::uint64_t* const values = warps[threadIdx.x / 32].values[fiber.exchanges++ % 2];
  values[threadIdx.x % 32] = value;
  back_to_scheduler(fiber, State::at_warp_barrier);
  return values;
}

LAZYLLM_UNWATCHED static void block_barrier() {
  Fiber& fiber = fibers[threadIdx.x];
  char* const barrier = &block_barriers[fiber.barriers++ % 2];
  leave_for(barrier);
  back_to_scheduler(fiber, State::at_block_barrier);
  come_from(barrier);
}

void fail_allocation_after(int count) {
  everything().failing_allocation = count < 0 ? -1 : everything().counters.allocations + count;
}

void fail_call_after(int count) { everything().failing_call = count < 0 ? -1 : everything().counters.calls + count; }

const Counters& counters() { return everything().counters; }

bool is_pinned(const void* memory) { return everything().pinned.contains(memory); }

bool idle(cudaStream_t stream) { return stream_of(stream).work.empty(); }

}  // namespace lazyllm::test::cuda_emulation

namespace emulation = lazyllm::test::cuda_emulation;

void __syncthreads() { emulation::block_barrier(); }

// The part of the CUDA runtime that the backend uses.
extern "C" {

cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t) {
  return emulation::allocate(memory, bytes);
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  const cudaError_t code = emulation::allocate(memory, bytes);
  if (code == cudaSuccess) emulation::everything().pinned.insert(*memory);
  return code;
}
// What waits or frees does so even where it reports an error, which on a device would be that of earlier work.
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  emulation::enqueue(stream, [=] { std::free(memory); });
  return emulation::call();
}
cudaError_t cudaFreeHost(void* memory) {
  emulation::everything().pinned.erase(memory);
  std::free(memory);
  return emulation::call();
}
cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (const cudaError_t code = emulation::call(); code != cudaSuccess) return code;
  if (kind == cudaMemcpyDeviceToHost) {
    ++emulation::everything().counters.copies_to_host;
    emulation::everything().counters.bytes_to_host += bytes;
  }
  emulation::enqueue(stream, [=] { std::memcpy(target, source, bytes); });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(&emulation::everything().streams.emplace_back());
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ++emulation::everything().counters.waits;
  emulation::stream_of(stream).run_all();
  return emulation::call();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (const cudaError_t code = emulation::call(); code != cudaSuccess) return code;
  *event = reinterpret_cast<cudaEvent_t>(new emulation::EventMark{});
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t code = emulation::call(); code != cudaSuccess) return code;
  emulation::Stream& marked = emulation::stream_of(stream);
  *reinterpret_cast<emulation::EventMark*>(event) = {&marked, marked.enqueued};
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const auto& mark = *reinterpret_cast<emulation::EventMark*>(event);
  if (mark.stream != nullptr) mark.stream->run_until(mark.number);
  return emulation::call();
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<emulation::EventMark*>(event);
  return emulation::call();
}
cudaError_t cudaGetLastError() { return std::exchange(emulation::everything().last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorMemoryAllocation ? "out of memory" : "unknown error";
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
}
