#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <cstdio>

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skipped: all benchmarks of this program: no CUDA device");
    return 0;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
