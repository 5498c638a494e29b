#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstdio>
#include <vector>

#include "lazyllm/core.hpp"

using namespace lazyllm;

namespace {

static_assert(KeyView<ContiguousKeys<float>> && KeyView<PagedKeys<float>>);

/// One thread per (position, head): the first element of the key, as the view finds it on the device.
template <KeyView Keys>
__global__ void first_elements(Keys keys, float* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = *keys.key(static_cast<Position>(blockIdx.x), threadIdx.x);
}

template <class T>
class DeviceCopy {
 public:
  explicit DeviceCopy(const std::vector<T>& values) : bytes_(values.size() * sizeof(T)) {
    REQUIRE(cudaMalloc(&data_, bytes_) == cudaSuccess);
    REQUIRE(cudaMemcpy(data_, values.data(), bytes_, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  ~DeviceCopy() { cudaFree(data_); }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  T* data() const { return data_; }

  std::vector<T> to_host() const {
    std::vector<T> values(bytes_ / sizeof(T));
    REQUIRE(cudaMemcpy(values.data(), data_, bytes_, cudaMemcpyDeviceToHost) == cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace

TEST_CASE("control plane compiled as CUDA C++") {
  const Schedule schedule = parse_schedule("2:0.5,3:0.25");
  CHECK(*schedule.find(3) == 0.25);
  CHECK_THROWS_AS(schedule.check(3), invalid_argument);
}

TEST_CASE("key views are read by a kernel") {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skipped: key views are read by a kernel: no CUDA device");
    return;
  }
  constexpr Index positions = 6, heads = 2, width = 4, page_size = 2;
  std::vector<float> values(positions * heads * width);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const DeviceCopy<float> keys(values);
  const DeviceCopy<std::int32_t> page_table({2, 0, 1});
  const DeviceCopy<float> out(std::vector<float>(positions * heads));

  const auto check = [&](auto view, auto offset) {
    first_elements<<<positions, heads>>>(view, out.data());
    const std::vector<float> found = out.to_host();
    for (Index p = 0; p < positions; ++p) {
      for (Index h = 0; h < heads; ++h) CHECK(found[p * heads + h] == static_cast<float>(offset(p, h)));
    }
  };
  SUBCASE("contiguous") {
    check(ContiguousKeys<float>{keys.data(), heads * width, width, heads},
          [&](Index p, Index h) { return (p * heads + h) * width; });
  }
  SUBCASE("paged") {
    constexpr Index pages[] = {2, 0, 1};
    check(PagedKeys<float>{keys.data(), page_table.data(), page_size, page_size * heads * width, heads * width, width,
                           heads},
          [&](Index p, Index h) { return ((pages[p / page_size] * page_size + p % page_size) * heads + h) * width; });
  }
}
