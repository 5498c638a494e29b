#include "support/cuda_emulation.hpp"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#ifdef LAZYLLM_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

namespace lazyllm::test::cuda_emulation {
namespace {

/// Memory in a range of addresses of its own. Its pages are protected while no `Access` lives.
class Arena {
 public:
  Arena() {
    void* const range = mmap(nullptr, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw std::bad_alloc();
    first_ = end_ = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(range) / alignment + 1) * alignment);
  }

  class Access {
   public:
    explicit Access(Arena& memory) : memory_(&memory) {
      if (memory.accesses_++ == 0) memory.protect(PROT_READ | PROT_WRITE);
    }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;
    ~Access() {
      if (--memory_->accesses_ == 0) memory_->protect(PROT_NONE);
    }

   private:
    Arena* memory_;
  };

  void* allocate(std::size_t bytes) {
    const std::size_t block_bytes = (bytes + page - 1) / page * page + page;  // a page between the blocks
    std::byte* block = end_;
    auto& freed = freed_[block_bytes];
    if (freed.size() > 8) {  // memory is not used again soon, so that a late access is seen
      block = freed.front();
      freed.pop_front();
    } else {
      if (end_ + block_bytes > first_ + size) return nullptr;
      end_ += block_bytes;
      if (accesses_ > 0) protect(PROT_READ | PROT_WRITE);
    }
    const Access access(*this);
    ASAN_UNPOISON_MEMORY_REGION(block, bytes);
    ASAN_POISON_MEMORY_REGION(block + bytes, block_bytes - bytes);
    std::memset(block, 0xff, bytes);  // floats of all types that are not a number
    blocks_[block] = {bytes, block_bytes};
    return block;
  }

  void free(void* memory) {
    const auto block = blocks_.find(static_cast<std::byte*>(memory));
    if (block == blocks_.end()) throw std::logic_error("memory is freed that is not there");
    madvise(memory, block->second.block_bytes, MADV_DONTNEED);
    ASAN_POISON_MEMORY_REGION(memory, block->second.block_bytes);
    freed_[block->second.block_bytes].push_back(block->first);
    blocks_.erase(block);
  }

  bool contains(const void* memory) const { return memory >= first_ && memory < first_ + size; }

  /// Whether all the bytes belong to one allocation.
  bool holds(const void* memory, std::size_t bytes) const {
    auto block = blocks_.upper_bound(static_cast<std::byte*>(const_cast<void*>(memory)));
    if (block == blocks_.begin()) return false;
    --block;
    return static_cast<const std::byte*>(memory) + bytes <= block->first + block->second.bytes;
  }

 private:
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  static constexpr std::size_t size = std::size_t{1} << 36;
  // What is left of a pointer after its lower half has been written over still points into the range.
  static constexpr std::size_t alignment = std::size_t{1} << 32;

  struct Block {
    std::size_t bytes;
    std::size_t block_bytes;
  };

  void protect(int access) {
    if (end_ > first_) mprotect(first_, static_cast<std::size_t>(end_ - first_), access);
  }

  std::byte* first_;
  std::byte* end_;
  int accesses_ = 0;
  std::map<std::byte*, Block> blocks_;
  std::map<std::size_t, std::deque<std::byte*>> freed_;  // by size
};

Arena& device_memory() {
  static auto* const memory = new Arena();  // stays until the program ends
  return *memory;
}

/// Pinned memory, which is never protected.
Arena& pinned_memory() {
  static auto* const memory = new Arena();
  static auto* const access = new Arena::Access(*memory);
  return *(access != nullptr ? memory : nullptr);
}

using Work = std::function<void()>;

/// What is captured of a stream.
struct Capture {
  std::vector<Work> work;
  bool valid = true;
};

struct Stream {
  std::deque<Work> work;
  std::size_t enqueued = 0;
  std::unique_ptr<Capture> capture;

  void run_until(std::size_t number) {
    const Arena::Access access(device_memory());
    while (!has_run(number)) {
      const auto next = std::move(work.front());
      work.pop_front();
      next();
    }
  }
  void run_all() { run_until(enqueued); }

  /// Whether the first `number` pieces of work have run.
  bool has_run(std::size_t number) const { return enqueued - work.size() >= number; }
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
  std::map<const void*, std::size_t> max_shared;       // of kernels that have opted in
  Counters counters;
  int failing_allocation = -1;
  int failing_call = -1;
  cudaError_t last_error = cudaSuccess;
  std::uint64_t pool_kept_bytes = 0;
};

Everything& everything() {
  static Everything everything;
  return everything;
}

Stream& stream_of(cudaStream_t stream) {
  return stream == nullptr ? everything().streams.front() : *reinterpret_cast<Stream*>(stream);
}

cudaError_t failed(cudaError_t code) { return everything().last_error = code; }

/// Counts a call, and fails if it is the one to fail.
cudaError_t call() {
  return everything().counters.calls++ == everything().failing_call ? failed(cudaErrorUnknown) : cudaSuccess;
}

/// Fails if the stream is captured: what a host may not do then, and what no graph of the tests may contain.
cudaError_t not_captured(Stream& stream) {
  if (stream.capture == nullptr) return cudaSuccess;
  stream.capture->valid = false;
  return failed(cudaErrorStreamCaptureUnsupported);
}

/// Counts an allocation, and fails if it is the one to fail.
cudaError_t allocate(Arena& arena, void** memory, std::size_t bytes) {
  const cudaError_t code = call();
  if (everything().counters.allocations++ == everything().failing_allocation) return failed(cudaErrorMemoryAllocation);
  if (code != cudaSuccess) return code;
  everything().counters.allocated_bytes += bytes;
  *memory = bytes == 0 ? nullptr : arena.allocate(bytes);
  return bytes == 0 || *memory != nullptr ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

/// Whether `bytes` bytes may be copied like that. The rows of a matrix are `stride` bytes apart.
bool may_copy(const void* target, std::size_t target_stride, const void* source, std::size_t source_stride,
              std::size_t row_bytes, std::size_t rows, cudaMemcpyKind kind) {
  if (row_bytes == 0 || rows == 0) return true;
  const bool to_device = device_memory().contains(target);
  const bool from_device = device_memory().contains(source);
  if (to_device && !device_memory().holds(target, (rows - 1) * target_stride + row_bytes)) return false;
  if (from_device && !device_memory().holds(source, (rows - 1) * source_stride + row_bytes)) return false;
  if (kind == cudaMemcpyHostToDevice) return to_device && !from_device;
  if (kind == cudaMemcpyDeviceToHost) return !to_device && from_device;
  return kind == cudaMemcpyDefault || (to_device && from_device);
}

/// Searches what goes from the host to the device for pointers to host memory.
void check_upload(const void* target, const void* source, std::size_t bytes) {
  if (!device_memory().contains(target) || device_memory().contains(source)) return;
  std::vector<std::uint64_t> words(bytes / sizeof(std::uint64_t));
  if (!words.empty()) std::memcpy(words.data(), source, words.size() * sizeof(std::uint64_t));
  check_pointers(words);
}

cudaError_t copy(void* target, std::size_t target_stride, const void* source, std::size_t source_stride,
                 std::size_t row_bytes, std::size_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t code = call(); code != cudaSuccess) return code;
  if (!device_memory().contains(source) || !device_memory().contains(target)) {
    if (const cudaError_t code = not_captured(stream_of(stream)); code != cudaSuccess) return code;
  }
  if (!may_copy(target, target_stride, source, source_stride, row_bytes, rows, kind)) {
    return failed(cudaErrorInvalidValue);
  }
  if (device_memory().contains(source) && !device_memory().contains(target)) {
    ++everything().counters.copies_to_host;
    everything().counters.bytes_to_host += row_bytes * rows;
  }
  for (std::size_t row = 0; row < rows; ++row) {
    check_upload(target, static_cast<const std::byte*>(source) + row * source_stride, row_bytes);
  }
  enqueue(stream, [=] {
    for (std::size_t row = 0; row < rows && row_bytes > 0; ++row) {
      std::memcpy(static_cast<std::byte*>(target) + row * target_stride,
                  static_cast<const std::byte*>(source) + row * source_stride, row_bytes);
    }
  });
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

/// Where a function has stopped, to go on from there on its own stack. By compiler built-ins: swapcontext asks the
/// kernel for the signal mask, and under the address sanitizer it and longjmp clear what is known of the stack, at each
/// switch.
struct Place {
  void* words[5];
};

// Apart from `yield_here`: in one function g++ takes the return of __builtin_setjmp away.
[[noreturn]] LAZYLLM_UNWATCHED __attribute__((noinline, no_sanitize("address"))) void go_on(Place& there) {
  __builtin_longjmp(there.words, 1);
}

LAZYLLM_UNWATCHED __attribute__((noinline, no_sanitize("address"))) void yield_here(Place& here, Place& other) {
  if (__builtin_setjmp(here.words) == 0) go_on(other);
}

/// Stops `here` and goes on at `other`. Returns when something goes on here. Compilers must not look through the call:
/// they would keep in registers, and take for unchanged, what others change meanwhile.
void (*volatile yield)(Place& here, Place& other) = yield_here;

struct Fiber {
  static constexpr std::size_t stack_bytes = 64 * 1024;
  std::unique_ptr<char[]> stack;  // none before the first thread
  Place place{};
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
Place scheduler;
const std::function<void()>* thread_body;

LAZYLLM_UNWATCHED void back_to_scheduler(Fiber& fiber, State state) {
  fiber.state = state;
  watch(watched_scheduler());
  yield(fiber.place, scheduler);
}

/// What a fiber does: one thread of each block.
LAZYLLM_UNWATCHED void run_threads() {
  Fiber& fiber = fibers[threadIdx.x];
  while (true) {
    come_from(&block_start);
    (*thread_body)();
    leave_for(&block_end);
    back_to_scheduler(fiber, State::done);
  }
}

/// Goes on with a thread until it waits or has ended.
LAZYLLM_UNWATCHED void run(Fiber& fiber) {
  watch(fiber.watched);
  if (fiber.stack != nullptr) return yield(scheduler, fiber.place);
  fiber.stack = std::make_unique_for_overwrite<char[]>(Fiber::stack_bytes);
  ucontext_t start;
  getcontext(&start);
  start.uc_stack.ss_sp = fiber.stack.get();
  start.uc_stack.ss_size = Fiber::stack_bytes;
  makecontext(&start, run_threads, 0);
  if (__builtin_setjmp(scheduler.words) == 0) setcontext(&start);
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
  if (Capture* const capture = stream_of(stream).capture.get()) return capture->work.push_back(std::move(work));
  stream_of(stream).work.push_back(std::move(work));
  ++stream_of(stream).enqueued;
}

cudaError_t launched(std::uint64_t threads) {
  if (const cudaError_t code = call(); code != cudaSuccess) return code;
  ++everything().counters.launches;
  everything().counters.threads += threads;
  return cudaSuccess;
}

cudaError_t kernel_launched(const void* kernel, dim3 blocks, unsigned threads, std::size_t shared) {
  constexpr std::size_t shared_without_opt_in = 48 * 1024;
  const auto opt_in = everything().max_shared.find(kernel);
  const std::size_t max_shared = opt_in == everything().max_shared.end() ? shared_without_opt_in : opt_in->second;
  if (shared > std::max(max_shared, shared_without_opt_in)) return failed(cudaErrorInvalidValue);
  if (blocks.x == 0 || blocks.y == 0 || blocks.z != 1 || blocks.x > INT32_MAX || blocks.y > 65535 || threads == 0 ||
      threads > 1024) {
    return failed(cudaErrorInvalidConfiguration);
  }
  return launched(std::uint64_t{threads} * blocks.x * blocks.y);
}

#ifdef __clang__
extern "C" {
// The linker finds the first and the last byte of a section by these names.
extern std::byte __start_cuda_emulation_shared[] __attribute__((weak));
extern std::byte __stop_cuda_emulation_shared[] __attribute__((weak));
}

LAZYLLM_UNWATCHED __attribute__((no_sanitize("address"))) static void fill_static_shared() {
  // Word by word, which is faster. Not by memset, which would look at what the sanitizer puts between variables.
  std::byte* byte = __start_cuda_emulation_shared;
  for (; __stop_cuda_emulation_shared - byte >= 8; byte += 8) {
    *reinterpret_cast<volatile std::uint64_t*>(byte) = ~std::uint64_t{0};
  }
  for (; byte != __stop_cuda_emulation_shared; ++byte) *static_cast<volatile std::byte*>(byte) = std::byte{0xff};
}
#else
static void fill_static_shared() {}
#endif

void fill_shared(std::size_t shared) {
  fill_static_shared();
  static std::size_t there = max_shared_bytes;  // of the last block
  if (shared > there) ASAN_UNPOISON_MEMORY_REGION(shared_bytes, shared);
  std::memset(shared_bytes, 0xff, shared);
  if (shared < there) ASAN_POISON_MEMORY_REGION(&shared_bytes[shared], there - shared);
  there = shared;
}

void check_pointers(std::span<const std::uint64_t> words) {
  // Linux puts the memory of programs at such addresses: on x86 at the upper ones, and the sanitizers their own below.
#ifdef __x86_64__
  constexpr std::uint64_t first = std::uint64_t{0x55} << 40;
  constexpr std::uint64_t last = std::uint64_t{1} << 47;
#else
  constexpr std::uint64_t first = std::uint64_t{1} << 32;
  constexpr std::uint64_t last = std::uint64_t{1} << 48;
#endif
  for (const std::uint64_t word : words) {
    if (word < first || word >= last) continue;
    const auto* const memory = reinterpret_cast<const void*>(word);
    if (is_on_device(memory) || is_pinned(memory) || !host_can_read(memory)) continue;
    std::ostringstream message;
    message << "the device is given a pointer to host memory: " << memory;
    throw std::logic_error(message.str());
  }
}

LAZYLLM_UNWATCHED void run_block(unsigned threads, const std::function<void()>& body) {
  if (threads == 0 || threads % 32 != 0) throw std::logic_error("a block is not of whole warps");
  thread_body = &body;
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = fibers[t];
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
          run(fiber);
        }
      } while (release(first, first + 32, State::at_warp_barrier));
    }
  } while (release(0, threads, State::at_block_barrier));
  come_from(&block_end);
  bool ended = true;
  for (unsigned t = 0; t < threads; ++t) {
    if (fibers[t].state == State::done) continue;
    fibers[t].stack.reset();  // it would go on with this block
    ended = false;
  }
  if (!ended) throw std::logic_error("the threads of a block wait at different barriers");
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

bool is_pinned(const void* memory) { return pinned_memory().contains(memory); }

bool is_on_device(const void* memory) { return device_memory().contains(memory); }

std::uint64_t pool_kept_bytes() { return everything().pool_kept_bytes; }

bool host_can_read(const void* memory) {
  int ends[2];
  if (pipe(ends) != 0) throw std::bad_alloc();
  // Fails with EFAULT if not. Not by `write`, whose arguments the address sanitizer checks.
  const bool readable = syscall(SYS_write, ends[1], memory, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

bool idle(cudaStream_t stream) { return stream_of(stream).work.empty(); }

}  // namespace lazyllm::test::cuda_emulation

namespace emulation = lazyllm::test::cuda_emulation;

void __syncthreads() { emulation::block_barrier(); }

// The part of the CUDA runtime that the backend uses.
extern "C" {

cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream) {
  if (const cudaError_t code = emulation::not_captured(emulation::stream_of(stream)); code != cudaSuccess) return code;
  return emulation::allocate(emulation::device_memory(), memory, bytes);
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return emulation::allocate(emulation::pinned_memory(), memory, bytes);
}
// What waits or frees does so even where it reports an error, which on a device would be that of earlier work.
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  emulation::enqueue(stream, [=] { emulation::device_memory().free(memory); });
  return emulation::call();
}
cudaError_t cudaFreeHost(void* memory) {
  emulation::pinned_memory().free(memory);
  return emulation::call();
}
cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return emulation::copy(target, bytes, source, bytes, bytes, 1, kind, stream);
}
cudaError_t cudaMemcpy2DAsync(void* target, std::size_t target_stride, const void* source, std::size_t source_stride,
                              std::size_t row_bytes, std::size_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
  return emulation::copy(target, target_stride, source, source_stride, row_bytes, rows, kind, stream);
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (const cudaError_t code = emulation::call(); code != cudaSuccess) return code;
  const auto bytes = static_cast<std::size_t>(value);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || bytes > emulation::max_shared_bytes) {
    return emulation::failed(cudaErrorInvalidValue);
  }
  emulation::everything().max_shared[kernel] = bytes;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(&emulation::everything().streams.emplace_back());
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  emulation::stream_of(stream).run_all();
  return emulation::call();
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (const cudaError_t code = emulation::call(); code != cudaSuccess) return code;
  // The default stream cannot be captured.
  if (stream == nullptr) return emulation::failed(cudaErrorStreamCaptureUnsupported);
  emulation::stream_of(stream).capture = std::make_unique<emulation::Capture>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  auto capture = std::move(emulation::stream_of(stream).capture);
  if (const cudaError_t code = emulation::call(); code != cudaSuccess) return code;
  if (!capture->valid) return emulation::failed(cudaErrorStreamCaptureInvalidated);
  *graph = reinterpret_cast<cudaGraph_t>(capture.release());
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* launchable, cudaGraph_t graph, unsigned long long) {
  if (const cudaError_t code = emulation::call(); code != cudaSuccess) return code;
  *launchable = reinterpret_cast<cudaGraphExec_t>(
      new std::vector<emulation::Work>(reinterpret_cast<const emulation::Capture*>(graph)->work));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<emulation::Capture*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t launchable) {
  delete reinterpret_cast<std::vector<emulation::Work>*>(launchable);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t launchable, cudaStream_t stream) {
  if (const cudaError_t code = emulation::call(); code != cudaSuccess) return code;
  ++emulation::everything().counters.graph_launches;
  for (const emulation::Work& work : *reinterpret_cast<const std::vector<emulation::Work>*>(launchable)) {
    emulation::enqueue(stream, work);
  }
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t code = emulation::not_captured(emulation::stream_of(stream)); code != cudaSuccess) return code;
  ++emulation::everything().counters.waits;
  emulation::stream_of(stream).run_all();
  return emulation::call();
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (const cudaError_t code = emulation::call(); code != cudaSuccess) return code;
  *event = reinterpret_cast<cudaEvent_t>(new emulation::EventMark{});
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t code = emulation::call(); code != cudaSuccess) return code;
  emulation::Stream& marked = emulation::stream_of(stream);
  if (const cudaError_t code = emulation::not_captured(marked); code != cudaSuccess) return code;
  *reinterpret_cast<emulation::EventMark*>(event) = {&marked, marked.enqueued};
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const auto& mark = *reinterpret_cast<emulation::EventMark*>(event);
  if (mark.stream != nullptr) {
    emulation::everything().counters.event_waits += !mark.stream->has_run(mark.number);
    mark.stream->run_until(mark.number);
  }
  return emulation::call();
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const auto number = [](cudaEvent_t event) { return reinterpret_cast<const emulation::EventMark*>(event)->number; };
  *milliseconds = static_cast<float>(5 * (number(end) - number(start)) + 1);  // of each piece of work, and a gap
  return emulation::call();
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<emulation::EventMark*>(event);
  return emulation::call();
}
cudaError_t cudaGetLastError() { return std::exchange(emulation::everything().last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    case cudaErrorInvalidValue: return "invalid argument";
    default: return "unknown error";
  }
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "emulated");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = reinterpret_cast<cudaMemPool_t>(&emulation::everything().pool_kept_bytes);
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  if (attribute != cudaMemPoolAttrReleaseThreshold) return emulation::failed(cudaErrorInvalidValue);
  *reinterpret_cast<std::uint64_t*>(pool) = *static_cast<const std::uint64_t*>(value);
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) { return cudaSuccess; }
}
