#include "support/cuda_emulation.hpp"

#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace lazyllm::test::cuda_emulation {
namespace {

struct Stream {
  std::deque<std::function<void()>> work;
  std::size_t enqueued = 0;
  int allocations = 0;
  int failing_allocation = -1;
  int copies_to_host = 0;

  void run_until(std::size_t number) {
    while (enqueued - work.size() < number) {
      const auto next = std::move(work.front());
      work.pop_front();
      next();
    }
  }
  ~Stream() { run_until(enqueued); }
};

Stream& stream() {
  static Stream stream;
  return stream;
}

cudaError_t allocate(void** memory, std::size_t bytes) {
  if (stream().allocations++ == stream().failing_allocation) return cudaErrorMemoryAllocation;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, 0xff, bytes);  // floats of all types that are not a number
  return cudaSuccess;
}

enum class State { ready, at_block_barrier, at_warp_barrier, done };

struct Fiber {
  static constexpr std::size_t stack_bytes = 64 * 1024;
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
  ucontext_t context{};
  State state = State::ready;
  std::size_t exchanges = 0;
};

struct Warp {
  std::uint64_t values[2][32];
};

std::vector<Fiber> fibers(1024);
std::vector<Warp> warps(32);
ucontext_t scheduler;
const std::function<void()>* thread_body;

void run_thread() {
  (*thread_body)();
  fibers[threadIdx.x].state = State::done;
}

void wait(State barrier) {
  const unsigned thread = threadIdx.x;
  fibers[thread].state = barrier;
  swapcontext(&fibers[thread].context, &scheduler);
}

/// Lets the threads that wait at `barrier` go on if all that have not ended wait there.
bool release(unsigned first, unsigned last, State barrier) {
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

void enqueue(std::function<void()> work) {
  stream().work.push_back(std::move(work));
  ++stream().enqueued;
}

void run_block(unsigned threads, const std::function<void()>& body) {
  thread_body = &body;
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = fibers[t];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = Fiber::stack_bytes;
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, run_thread, 0);
    fiber.state = State::ready;
    fiber.exchanges = 0;
  }
  do {
    for (unsigned first = 0; first < threads; first += 32) {
      do {
        for (threadIdx.x = first; threadIdx.x < first + 32; ++threadIdx.x) {
          Fiber& fiber = fibers[threadIdx.x];
          if (fiber.state == State::ready) swapcontext(&scheduler, &fiber.context);
        }
      } while (release(first, first + 32, State::at_warp_barrier));
    }
  } while (release(0, threads, State::at_block_barrier));
  for (unsigned t = 0; t < threads; ++t) {
    if (fibers[t].state != State::done) throw std::logic_error("the threads of a block wait at different barriers");
  }
}

const std::uint64_t* exchange(std::uint64_t value) {
  Warp& warp = warps[threadIdx.x / 32];
  std::uint64_t* const values = warp.values[fibers[threadIdx.x].exchanges++ % 2];
  values[threadIdx.x % 32] = value;
  wait(State::at_warp_barrier);
  return values;
}

void fail_allocation_after(int count) { stream().failing_allocation = count < 0 ? -1 : stream().allocations + count; }

int allocations() { return stream().allocations; }
int copies_to_host() { return stream().copies_to_host; }

}  // namespace lazyllm::test::cuda_emulation

namespace emulation = lazyllm::test::cuda_emulation;

void __syncthreads() { emulation::wait(emulation::State::at_block_barrier); }

// The part of the CUDA runtime that the backend uses.
extern "C" {

cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t) {
  return emulation::allocate(memory, bytes);
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return emulation::allocate(memory, bytes); }
cudaError_t cudaFreeAsync(void* memory, cudaStream_t) {
  emulation::enqueue([=] { std::free(memory); });
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  emulation::stream().copies_to_host += kind == cudaMemcpyDeviceToHost;
  emulation::enqueue([=] { std::memcpy(target, source, bytes); });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  emulation::stream().run_until(emulation::stream().enqueued);
  return cudaSuccess;
}
// An event is the number of works before it.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new std::size_t(0));
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  *reinterpret_cast<std::size_t*>(event) = emulation::stream().enqueued;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  emulation::stream().run_until(*reinterpret_cast<std::size_t*>(event));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<std::size_t*>(event);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "out of memory"; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
}
