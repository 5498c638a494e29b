#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

// Not needed here: two translation units that include the backend must link.
#include "lazyllm/cuda.cuh"

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skipped: all CUDA tests of this program: no CUDA device");
    return 0;
  }
  return doctest::Context(argc, argv).run();
}
