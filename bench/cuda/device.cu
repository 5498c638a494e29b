#include <cuda_runtime_api.h>

#include <cstdio>

/// Prints the first CUDA device as `NAME|MAJORMINOR`, its compute capability, or says why there is none.
int main() {
  cudaDeviceProp properties{};
  const cudaError_t code = cudaGetDeviceProperties(&properties, 0);
  if (code != cudaSuccess) {
    std::fprintf(stderr, "%s\n", cudaGetErrorString(code));
    return 1;
  }
  std::printf("%s|%d%d\n", properties.name, properties.major, properties.minor);
  return 0;
}
