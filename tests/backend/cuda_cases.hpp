#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>
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
static_assert(!std::is_copy_constructible_v<cuda::detail::DeviceMemory> &&
              !std::is_copy_constructible_v<cuda::Context>);

TEST_CASE("cuda: copies rows") {
  copies_rows<CudaMemory, float>();
  copies_rows<CudaMemory, __nv_bfloat16>();
  copies_rows<CudaMemory, __half>();
  copies_rows<CudaMemory, std::uint8_t>();
}
TEST_CASE("cuda: copies lists of rows") { copies_lists_of_rows<CudaMemory>(); }
TEST_CASE("cuda: copies to and from the host") {
  copies_to_and_from_host<CudaMemory, float>();
  copies_to_and_from_host<CudaMemory, __half>();
}
TEST_CASE("cuda: selects small cases") { selects_small_cases<CudaMemory>(); }
TEST_CASE("cuda: selects equal scores") { selects_equal_scores<CudaMemory>(); }
TEST_CASE("cuda: selects like a stable sort") { selects_like_a_stable_sort<CudaMemory>(runs(300)); }
TEST_CASE("cuda: selects for ragged batches") { selects_for_ragged_batches<CudaMemory>(runs(100)); }
TEST_CASE("cuda: selects the same share in any order") { selects_the_same_share_in_any_order<CudaMemory>(); }
TEST_CASE("cuda: selects the same share at any scale") { selects_the_same_share_at_any_scale<CudaMemory>(); }
TEST_CASE("cuda: selects only finite scores") { selects_only_finite_scores<CudaMemory>(); }
TEST_CASE("cuda: pools scores") { pools_scores<CudaMemory>(); }
TEST_CASE("cuda: finds bad scores among pooled ones") { finds_bad_scores_among_pooled_ones<CudaMemory>(); }
TEST_CASE("cuda: accumulates scores") { accumulates_scores<CudaMemory>(); }
TEST_CASE("cuda: scores attention") {
  scores_attention<CudaMemory, float>();
  scores_attention<CudaMemory, __nv_bfloat16>();
  scores_attention<CudaMemory, __half>();
}

/// A list of T as one of U, which has the same bits.
template <class U, class T>
std::vector<U> as(const std::vector<T>& values) {
  std::vector<U> result(values.size());
  std::memcpy(static_cast<void*>(result.data()), static_cast<const void*>(values.data()), values.size() * sizeof(T));
  return result;
}

/// Scores of elements that the library knows by their bits alone.
template <class T, class Bits>
void scores_by_bits() {
  const AttentionProblem<T> problem(4, 8, 2, 20, 150, 2);
  auto context = CudaMemory::make_context();
  auto queries = CudaMemory::upload(context, as<Bits>(problem.queries));
  auto keys = CudaMemory::upload(context, as<Bits>(problem.keys));
  auto scores = CudaMemory::upload(context, std::vector<float>(problem.active.size()));
  score_one(context,
            QueryRows<Bits>{queries.data(), problem.row_width(), problem.head_dim, problem.heads, problem.head_dim,
                            problem.scale()},
            problem.first_row, problem.limits,
            ContiguousKeys<Bits>{keys.data(), problem.key_width(), problem.head_dim, problem.kv_heads}, problem.active,
            Reduce::mean, scores.span());
  CHECK(scores.download() == problem.template scores<CudaMemory>(Reduce::mean));
}
TEST_CASE("cuda: scores attention of elements by their bits as of the toolkit's types") {
  scores_by_bits<__half, Float16>();
  scores_by_bits<__nv_bfloat16, BFloat16>();
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

/// More than the pinned memory for one copy, with rows that do not divide it, and rows that are longer.
TEST_CASE("cuda: large matrices are copied to and from the host") {
  auto context = CudaMemory::make_context();
  for (const Index width : {3001, 300'000}) {
    const Index rows = 1'000'000 / width;
    std::vector<float> values(static_cast<std::size_t>(rows * width));
    std::iota(values.begin(), values.end(), 0.0F);
    cuda::Context::Buffer<float> buffer;
    buffer.reserve(context, rows, width + 5);
    const RowsView<float> view(buffer.rows().data, rows, width, width + 5);
    copy_from_host(context, static_cast<const float*>(values.data()), view);
    std::vector<float> back(values.size());
    copy_to_host(context, RowsView<const float>(view), back.data());
    CHECK((back == values));
  }
}

TEST_CASE("cuda: a negative workspace is refused") {
  CHECK_THROWS_WITH_AS(cuda::Context(cuda_stream(), -1),
                       "lazyllm: cuda::Context: workspace -1 is out of range, at least 0", invalid_argument);
}

}  // namespace lazyllm::test
