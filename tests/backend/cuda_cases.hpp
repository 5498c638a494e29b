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
static_assert(AuxStorage<cuda::OwnStorage<float>> && AuxStorage<cuda::PooledStorage<__half>>);
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
static_assert(SelectsAhead<cuda::Context>);

/// Begins a selection, copies the kept rows of tasks of known count, and then ends it: as `select_tokens`, and a copy
/// of the rows that it keeps.
template <class T>
void copies_rows_while_it_selects(Index width) {
  auto context = CudaMemory::make_context();
  std::mt19937 random(21);
  cuda::Context::PendingSelection selection;
  for (unsigned round = 0; round < runs(40); ++round) {
    CAPTURE(round);
    std::list<SelectionProblem> problems;
    std::list<DeviceArray<float>> memory;
    std::vector<SelectionTask> tasks;
    std::vector<KeptRows> rows;
    std::vector<Index> sources, counted;  // rows
    Index first_row = 0, bad = -1;
    for (unsigned i = 0; i < round % 5; ++i) {
      auto& problem = problems.emplace_back(random, 200, 1U << 20);
      problem.task.top_p = round % 3 == 0;
      if (round % 4 != 0) problem.task.revives = {};
      if (round % 7 == 6 && i == 1) {
        bad = 1;
        problem.scores.front() = NAN;
      }
      memory.push_back(CudaMemory::upload(context, problem.scores));
      tasks.push_back(problem.task);
      tasks.back().scores = memory.back().span();
      const Index keys = std::ssize(problem.keys);
      const bool by_count = !problem.task.top_p && problem.task.revives.empty();
      std::vector<Index> kept = problem.expected();
      counted.push_back(by_count ? std::ssize(kept) : -1);
      const Index target = std::ssize(sources);
      for (const Index k : kept) {
        if (by_count) sources.push_back(first_row + k);
      }
      if (by_count) rows.push_back({static_cast<Index>(i), first_row, std::ssize(kept), target});
      first_row += keys;
      if (i % 2 == 1) {  // a sequence that is not ranked
        rows.push_back({-1, first_row, 3, std::ssize(sources)});
        for (Index row = 0; row < 3; ++row) sources.push_back(first_row++);
      }
    }
    std::vector<T> values(static_cast<std::size_t>((first_row + 1) * width));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(static_cast<float>(i % 251));
    auto source = CudaMemory::upload(context, values);
    auto target = CudaMemory::upload(context, std::vector<T>((sources.size() + 1) * static_cast<std::size_t>(width)));
    KeptTokens expected, kept;
    select_tokens(context, std::span<const SelectionTask>(tasks), expected);
    begin_selection(context, std::span<const SelectionTask>(tasks), selection);
    for (std::size_t i = 0; i < tasks.size(); ++i) CHECK(selection.count(static_cast<Index>(i)) == counted[i]);
    copy_kept_rows(context, selection, RowsView<const T>(source.data(), first_row, width),
                   RowsView<T>(target.span().data(), std::ssize(sources), width), std::span<const KeptRows>(rows));
    context.workspace(1 << 20);  // what the feed-forward may do
    end_selection(context, selection, kept);
    CHECK(kept.indices == expected.indices);
    CHECK(kept.indptr == expected.indptr);
    CHECK(kept.bad == expected.bad);
    const std::vector<T> copied = target.download();
    bool equal = true;
    for (std::size_t row = 0; row < sources.size(); ++row) {
      const bool of_bad = bad >= 0 && std::ranges::any_of(rows, [&](const KeptRows& part) {
                            return part.task == bad && static_cast<Index>(row) >= part.target &&
                                   static_cast<Index>(row) < part.target + part.count;
                          });
      for (Index i = 0; i < width && !of_bad; ++i) {
        const T& value = copied[row * static_cast<std::size_t>(width) + static_cast<std::size_t>(i)];
        equal &=
            static_cast<float>(value) == static_cast<float>(values[static_cast<std::size_t>(sources[row] * width + i)]);
      }
    }
    CHECK(equal);
  }
}
TEST_CASE("cuda: copies kept rows while it selects") {
  copies_rows_while_it_selects<float>(8);
  copies_rows_while_it_selects<__half>(5);
  copies_rows_while_it_selects<__nv_bfloat16>(6);
}

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
