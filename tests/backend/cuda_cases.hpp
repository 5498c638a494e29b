#pragma once

#include <type_traits>

#include "backend/conformance.hpp"
#include "support/cuda_memory.hpp"

/// \file
/// The tests of the CUDA backend, for a device and for its emulation. In the library's namespace, since outside it
/// `cuda` is that of the toolkit too.

namespace lazyllm::test {

static_assert(Backend<cuda::Context>);
static_assert(AuxStorage<cuda::DenseStorage<float>> && AuxStorage<cuda::PooledStorage<__half>>);
static_assert(AuxStorage<cuda::PinnedStorage<__nv_bfloat16>>);
static_assert(std::is_nothrow_move_constructible_v<cuda::Sequence<__half>>);
static_assert(!std::is_copy_constructible_v<cuda::DeviceMemory> && !std::is_copy_constructible_v<cuda::Context>);

TEST_CASE("cuda: copies rows") {
  copies_rows<CudaMemory, float>();
  copies_rows<CudaMemory, __nv_bfloat16>();
  copies_rows<CudaMemory, __half>();
  copies_rows<CudaMemory, std::uint8_t>();
}
TEST_CASE("cuda: selects small cases") { selects_small_cases<CudaMemory>(); }
TEST_CASE("cuda: selects equal scores") { selects_equal_scores<CudaMemory>(); }
TEST_CASE("cuda: selects like a stable sort") { selects_like_a_stable_sort<CudaMemory>(runs(300)); }
TEST_CASE("cuda: selects for ragged batches") { selects_for_ragged_batches<CudaMemory>(runs(100)); }
TEST_CASE("cuda: selects the same mass in any order") { selects_the_same_mass_in_any_order<CudaMemory>(); }
TEST_CASE("cuda: selects only finite scores") { selects_only_finite_scores<CudaMemory>(); }
TEST_CASE("cuda: selects by drawn and pooled scores") { selects_by_drawn_and_pooled_scores<CudaMemory>(); }
TEST_CASE("cuda: finds bad scores among pooled ones") { finds_bad_scores_among_pooled_ones<CudaMemory>(); }
TEST_CASE("cuda: accumulates scores") { accumulates_scores<CudaMemory>(); }
TEST_CASE("cuda: scores attention") {
  scores_attention<CudaMemory, float>();
  scores_attention<CudaMemory, __nv_bfloat16>();
  scores_attention<CudaMemory, __half>();
}
TEST_CASE("cuda: scores attention with large logits") { scores_attention_with_large_logits<CudaMemory>(); }
TEST_CASE("cuda: scores ragged batches") {
  scores_ragged_batches<CudaMemory, float>();
  scores_ragged_batches<CudaMemory, __nv_bfloat16>();
}
TEST_CASE("cuda: honours strides of queries and keys") { honours_strides<CudaMemory>(); }
TEST_CASE("cuda: hides keys beyond a row's limit") { hides_keys_beyond_the_limit<CudaMemory>(); }
TEST_CASE("cuda: passes bad numbers on to the scores") { passes_bad_numbers_on<CudaMemory>(); }
TEST_CASE("cuda: grows buffers") {
  grows_buffers<CudaMemory, float>();
  grows_buffers<CudaMemory, __nv_bfloat16>();
}

TEST_CASE("cuda: a pinned buffer grows and keeps its rows") {
  auto context = CudaMemory::make_context();
  cuda::Context::PinnedBuffer<float> buffer;
  buffer.reserve(context, 2, 3);
  auto in = CudaMemory::upload(context, std::vector<float>{1, 2, 3, 4, 5, 6});
  const std::vector<Index> rows{0, 1};
  copy_rows(context, RowsView<const float>(in.data(), 2, 3), std::span<const Index>(rows), buffer.rows(),
            std::span<const Index>(rows));
  buffer.reserve(context, 5, 3);
  CHECK(buffer.rows().rows == 5);
  context.synchronize();
  CHECK(std::vector<float>(buffer.rows().data, buffer.rows().data + 6) == std::vector<float>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("cuda: host lists may be changed as soon as a call returns, however many follow") {
  auto context = CudaMemory::make_context();
  std::vector<float> values(40);
  std::iota(values.begin(), values.end(), 0.0F);
  auto in = CudaMemory::upload(context, values);
  auto out = CudaMemory::upload(context, std::vector<float>(40));
  for (Index i = 0; i < 40; ++i) {  // more calls than the staging memory has places
    std::vector<Index> from{i}, to{39 - i};
    copy_rows(context, RowsView<const float>(in.data(), 40, 1), std::span<const Index>(from),
              RowsView<float>(out.span().data(), 40, 1), std::span<const Index>(to));
    from[0] = to[0] = 0;
  }
  std::ranges::reverse(values);
  CHECK(out.download() == values);
}

TEST_CASE("cuda: a negative workspace is refused") {
  CHECK_THROWS_WITH_AS(cuda::Context(cuda_stream(), -1),
                       "lazyllm: cuda::Context: workspace -1 is out of range, at least 0", invalid_argument);
}

}  // namespace lazyllm::test
