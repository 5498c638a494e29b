#include "properties/random_runs.hpp"

#include <Eigen/Core>

#include "support/cpu_memory.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

TEST_CASE("random runs: own storage, separate feed-forward, every score") {
  random_runs<CpuMemory<>, cpu::OwnStorage<float>, TinyAttention<float>, TinyFeedForward<float>>(1000);
}

TEST_CASE("random runs: pooled storage, feed-forwards that differ by request, every score") {
  random_runs<CpuMemory<>, cpu::PooledStorage<float>, TinyAttention<float>, TinyAdaptedFeedForward<float>>(1000);
}

TEST_CASE("random runs: fused block") {
  random_runs<CpuMemory<>, cpu::PooledStorage<float>, TinyFusedBlock<float>>(400);
}

TEST_CASE("random runs: plain scores, computed by the host") {
  random_runs<CpuMemory<>, cpu::OwnStorage<float>, PlainlyScored<float, CpuMemory<>>, TinyFeedForward<float>,
              PlainMemory>(400);
}

TEST_CASE("random runs: bfloat16 rows") {
  random_runs<CpuMemory<>, cpu::PooledStorage<Eigen::bfloat16>, TinyAttention<Eigen::bfloat16>,
              TinyFeedForward<Eigen::bfloat16>>(300);
}

TEST_CASE("random runs: half rows") {
  random_runs<CpuMemory<>, cpu::OwnStorage<Eigen::half>, TinyAttention<Eigen::half>, TinyFeedForward<Eigen::half>>(300);
}
