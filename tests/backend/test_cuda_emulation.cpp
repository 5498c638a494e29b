#include "support/cuda_emulation.hpp"
// Tests of the emulation itself: it reports what a device would refuse or answer with garbage.
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "support/cuda_memory.hpp"

namespace lazyllm::test {
namespace emulation = cuda_emulation;

TEST_CASE("emulation: threads that wait for ever are reported") {
  CHECK_THROWS_AS(emulation::run_block(32,
                                       [] {
                                         if (threadIdx.x < 7) __syncthreads();
                                         if (threadIdx.x >= 7) emulation::exchange(0);
                                       }),
                  std::logic_error);
  CHECK_THROWS_AS(emulation::run_block(33, [] {}), std::logic_error);
}

TEST_CASE("emulation: the host cannot touch device memory, whether work has run or not") {
  auto context = CudaMemory::make_context();
  auto memory = CudaMemory::upload(context, std::vector<int>{1, 2, 3});
  CHECK(emulation::is_on_device(memory.data()));
  CHECK_FALSE(emulation::host_can_read(memory.data()));
  CHECK(memory.download() == std::vector<int>{1, 2, 3});
  CHECK_FALSE(emulation::host_can_read(memory.data()));
  cuda::Context::PinnedBuffer<int> pinned;
  pinned.reserve(context, 3, 1);
  CHECK(emulation::is_pinned(pinned.rows().data));
  CHECK(emulation::host_can_read(pinned.rows().data));
}

/// Writes a number through a pointer.
struct Write {
  int* target;
  Index number;
};

void write_through(Write write) {
  if (threadIdx.x == 0) *write.target = static_cast<int>(write.number);
}

void write_seven(int* target) {
  if (threadIdx.x == 0) *target = 7;
}

TEST_CASE("emulation: the device is not given pointers to host memory") {
  auto context = CudaMemory::make_context();
  int on_host = 0;
  CHECK_THROWS_AS(cuda::detail::launch(context, dim3(1), 32, write_seven, &on_host), std::logic_error);
  CHECK_THROWS_AS(cuda::detail::launch(context, dim3(1), 32, write_through, Write{&on_host, 7}), std::logic_error);
  CHECK_THROWS_AS(cuda::detail::thrust_call(context, 1, [target = &on_host](const auto&) { *target = 7; }),
                  std::logic_error);
  const std::vector<std::uintptr_t> list{1, reinterpret_cast<std::uintptr_t>(&on_host)};
  CHECK_THROWS_AS(CudaMemory::upload(context, list), std::logic_error);
  const auto allocated = std::make_unique<int>(0);
  CHECK_THROWS_AS(cuda::detail::launch(context, dim3(1), 32, write_seven, allocated.get()), std::logic_error);

  auto memory = CudaMemory::upload(context, std::vector<int>{0, 0, 0});
  cuda::Context::PinnedBuffer<int> pinned;
  pinned.reserve(context, 1, 1);
  cuda::detail::launch(context, dim3(1), 32, write_seven, memory.span().data() + 1);
  cuda::detail::launch(context, dim3(1), 32, write_through, Write{memory.span().data() + 2, 8});
  cuda::detail::launch(context, dim3(1), 32, write_seven, pinned.rows().data);
  CHECK(memory.download() == std::vector<int>{0, 7, 8});
  CHECK(pinned.rows().data[0] == 7);
}

TEST_CASE("emulation: copies in the wrong direction or beyond the memory are refused") {
  auto context = CudaMemory::make_context();
  auto memory = CudaMemory::upload(context, std::vector<int>{1, 2, 3});  // with room for a fourth
  int* const on_device = memory.span().data();
  std::vector<int> host(8);
  const auto copy = [&](void* to, const void* from, std::size_t numbers, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, numbers * sizeof(int), kind, context.stream());
  };
  CHECK(copy(host.data(), on_device, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(copy(on_device, host.data(), 4, cudaMemcpyDefault) == cudaSuccess);
  CHECK(copy(host.data(), on_device, 5, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(copy(on_device, host.data(), 5, cudaMemcpyDefault) == cudaErrorInvalidValue);
  CHECK(copy(host.data(), on_device, 1, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(copy(on_device, host.data(), 1, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(copy(on_device, host.data(), 1, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  context.synchronize();
}

void do_nothing() {}

TEST_CASE("emulation: launches that a device refuses fail") {
  auto context = CudaMemory::make_context();
  const auto launched = [&](dim3 blocks, unsigned threads, std::size_t shared = 0) {
    return emulation::launch_kernel(context.stream(), blocks, threads, shared, do_nothing);
  };
  const int before = emulation::counters().launches;
  for (const dim3 blocks : {dim3(0), dim3(1, 0), dim3(1, 65536), dim3(1U << 31)}) {
    CHECK(launched(blocks, 32) == cudaErrorInvalidConfiguration);
  }
  for (const unsigned threads : {0U, 1025U, 1056U}) CHECK(launched(dim3(1), threads) == cudaErrorInvalidConfiguration);
  CHECK(launched(dim3(1), 32, 48 * 1024 + 1) == cudaErrorInvalidValue);
  CHECK(emulation::counters().launches == before);
  CHECK_THROWS_WITH_AS(cuda::detail::launch(context, dim3(0), 32, do_nothing),
                       "lazyllm: kernel launch: invalid configuration argument", cuda_error);

  CHECK(launched(dim3(3, 2), 1024) == cudaSuccess);
  CHECK(launched(dim3(1), 32, 48 * 1024) == cudaSuccess);
  const auto opt_in = [](int bytes) {
    return cudaFuncSetAttribute(reinterpret_cast<const void*>(do_nothing), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                bytes);
  };
  CHECK(opt_in(static_cast<int>(emulation::max_shared_bytes) + 1) == cudaErrorInvalidValue);
  CHECK(opt_in(60'000) == cudaSuccess);
  CHECK(launched(dim3(1), 32, 60'000) == cudaSuccess);
  CHECK(launched(dim3(1), 32, 60'001) == cudaErrorInvalidValue);
  CHECK(emulation::counters().launches == before + 3);
  emulation::fail_call_after(1);
  CHECK(launched(dim3(1), 32, 60'000) == cudaSuccess);
  CHECK(launched(dim3(1), 32, 60'000) == cudaErrorUnknown);
  emulation::fail_call_after(-1);
  cudaGetLastError();
  context.synchronize();
}

template <class T>
void see_and_change_shared(T* seen) {
  __shared__ T values[32];
  auto* const dynamic = reinterpret_cast<T*>(emulation::shared_bytes);
  const unsigned place = blockIdx.x * 32 + threadIdx.x;
  seen[2 * place] = values[threadIdx.x];
  seen[2 * place + 1] = dynamic[threadIdx.x];
  values[threadIdx.x] = dynamic[threadIdx.x] = 5;
}

TEST_CASE("emulation: shared memory is filled anew for each block") {
  auto context = CudaMemory::make_context();
  auto seen = CudaMemory::upload(context, std::vector<int>(2 * 2 * 32));
  for (int launch = 0; launch < 2; ++launch) {
    CHECK(emulation::launch_kernel(context.stream(), dim3(2), 32, 32 * sizeof(int), see_and_change_shared<int>,
                                   seen.span().data()) == cudaSuccess);
    const std::vector<int> values = seen.download();
    for (std::size_t i = 0; i < values.size(); ++i) {
#ifdef __clang__
      const bool filled = true;
#else
      const bool filled = i % 2 == 1;  // g++ leaves variables where they are
#endif
      if (filled) CHECK(values[i] == -1);
    }
  }
}

}  // namespace lazyllm::test
