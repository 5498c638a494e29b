#include "bench/examples/llama/model/gemm_rate.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <random>
#include <vector>

#ifdef LLAMA_HAS_ONEDNN
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

#include "examples/llama/kernels/cpu/isa.hpp"
#else
#include <Eigen/Core>
#endif

namespace llama {

namespace {

/// Seconds of the fastest of several runs of x `[rows x in]` times `[in x out]`.
template <class Run>
double fastest(const Run& run) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 7; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

#ifdef LLAMA_HAS_ONEDNN
double seconds(Index rows, Index in, Index out, bool bf16, int threads) {
  using namespace dnnl;
  bf16 = bf16 && usable(Isa::avx512);
  omp_set_num_threads(threads);
  engine cpu(engine::kind::cpu, 0);
  stream stream(cpu);
  const auto type = bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::desc x({rows, in}, type, memory::format_tag::ab);
  const memory::desc y({rows, out}, type, memory::format_tag::ab);
  const memory::desc any({in, out}, type, memory::format_tag::any);
#if DNNL_VERSION_MAJOR >= 3
  const matmul::primitive_desc description(cpu, x, any, y);
#else
  const matmul::primitive_desc description(matmul::desc(x, any, y), cpu);
#endif
  const auto filled = [&](const memory::desc& shape) {
    memory result(shape, cpu);
    std::mt19937 random(1);
    if (bf16) {
      // bf16 patterns of numbers in [0.5, 1): products of zeros can run faster than real ones.
      auto* data = static_cast<std::uint16_t*>(result.get_data_handle());
      std::generate_n(data, shape.get_size() / 2, [&] { return static_cast<std::uint16_t>(0x3f00 + random() % 128); });
    } else {
      std::uniform_real_distribution<float> uniform(-1, 1);
      std::generate_n(static_cast<float*>(result.get_data_handle()), shape.get_size() / 4,
                      [&] { return uniform(random); });
    }
    return result;
  };
  const memory source = filled(x);
  const memory weights = filled(description.weights_desc());
  const memory target(y, cpu);
  const matmul product(description);
  return fastest([&] {
    product.execute(stream, {{DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, target}});
    stream.wait();
  });
}
#else
double seconds(Index rows, Index in, Index out, bool, int threads) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Matrix x = Matrix::Random(rows, in);
  const Matrix weights = Matrix::Random(in, out);
  Matrix y(rows, out);
  const Index each = (rows + threads - 1) / threads;
  return fastest([&] {
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static)
#endif
    for (Index first = 0; first < rows; first += each) {
      const Index count = std::min(each, rows - first);
      y.middleRows(first, count).noalias() = x.middleRows(first, count) * weights;
    }
  });
}
#endif

}  // namespace

double gemm_rate(const ModelConfig& config, Index rows, bool bf16, int threads) {
  const Index query_width = config.heads * config.head_dim;
  const Index kv_width = config.kv_heads * config.head_dim;
  const std::array<std::array<Index, 2>, 4> products{{{config.hidden_size, 2 * kv_width + query_width},
                                                      {query_width, config.hidden_size},
                                                      {config.hidden_size, 2 * config.intermediate_size},
                                                      {config.intermediate_size, config.hidden_size}}};
  double operations = 0;
  double time = 0;
  for (const auto& [in, out] : products) {
    operations += 2.0 * static_cast<double>(rows) * static_cast<double>(in * out);
    time += seconds(rows, in, out, bf16, threads);
  }
  return operations / time;
}

}  // namespace llama
