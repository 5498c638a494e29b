#include "examples/llama/kernels/cuda/device_plan.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "examples/llama/kernels/cuda/layout.hpp"
#include "examples/llama/library.hpp"

namespace llama {
namespace {

/// Blocks that one sequence is cut into if it is not that many whole tiles: some times what a large device runs at
/// once, so that the last ones leave little of it idle.
constexpr Index many_blocks = 512;
constexpr Index few_blocks = 1024;
/// Keys of a part: fewer would cost more to put together than they save.
constexpr Index min_part = 256;
constexpr Index part_multiple = 64;

template <class List, class Values>
bool equal(const List& list, const Values& values) {
  return std::equal(list.begin(), list.end(), values.begin(), values.end());
}

template <class List, class Values>
void assign(List& list, const Values& values) {
  list.assign(values.begin(), values.end());
}

template <class T>
bool aligned_view(const KvView<T>& view) {
  constexpr auto size = static_cast<Index>(sizeof(T));
  const Index strides = view.layer_stride | view.head_stride | view.position_stride | view.page_stride;
  return (std::bit_cast<std::uintptr_t>(view.keys) | std::bit_cast<std::uintptr_t>(view.values)) % 16 == 0 &&
         strides * size % 16 == 0;
}

/// Whether 32 bits number all 16-byte chunks of a layer's keys. Pages are trusted, as where they lie is not known here.
template <class T>
bool numbered_view(const KvView<T>& view) {
  return view.page_table != nullptr ||
         view.capacity * view.position_stride / 8 < Index{std::numeric_limits<std::uint32_t>::max()};
}

}  // namespace

template <class T>
DevicePlan<T>::DevicePlan(const AttentionShape& shape) : shape_(shape) {
  if (shape.kv_heads < 1 || shape.heads < 1 || shape.heads % shape.kv_heads != 0)
    fail("DevicePlan: ", shape.kv_heads, " key/value heads do not divide ", shape.heads, " heads");
  if (shape.head_dim < 2 || shape.head_dim % 2 != 0)
    fail("DevicePlan: head_dim ", shape.head_dim, " is out of range, even and at least 2");
}

template <class T>
bool DevicePlan<T>::outputs_only(const lazyllm::LayerPlan& plan) {
  return plan.outputs_only() && std::reduce(plan.outputs().begin(), plan.outputs().end()) != plan.rows();
}

template <class T>
void DevicePlan<T>::identify(std::vector<std::uint64_t>& key) const {
  const auto add = [&key](auto... values) { (key.push_back(static_cast<std::uint64_t>(values)), ...); };
  add(rows(), query_rows(), aligned_, keys_numbered_);
  const auto add_address = [&](const void* address) { add(reinterpret_cast<std::uintptr_t>(address)); };
  for (const void* list :
       {static_cast<const void*>(positions_), static_cast<const void*>(row_sequences_),
        static_cast<const void*>(query_positions_), static_cast<const void*>(key_limits_),
        static_cast<const void*>(keys_), static_cast<const void*>(extents_), static_cast<const void*>(caches_)}) {
    add_address(list);
  }
  for (const Tiles* work : {&many_, &few_}) {
    add_address(work->tiles);
    add_address(work->joins);
    add(work->tile_count, work->join_count, work->part_count);
  }
}

template <class T>
void DevicePlan<T>::update(lazyllm::cuda::Context& context, const lazyllm::LayerPlan& plan,
                           std::span<const KvView<T>> caches) {
  if (on_device(plan, caches)) return;
  check(plan, caches);
  uploaded_ = false;
  assign(lists_.positions, plan.positions());
  assign(lists_.keys, plan.keys());
  assign(lists_.key_limits, plan.key_limits());
  assign(lists_.row_indptr, plan.row_indptr());
  assign(lists_.key_indptr, plan.key_indptr());
  assign(lists_.caches, caches);
  lists_.outputs_only = outputs_only(plan);
  assign(lists_.outputs, plan.outputs());

  tokens_ = 0;
  aligned_ = std::ranges::all_of(caches, aligned_view<T>);
  keys_numbered_ = std::ranges::all_of(caches, numbered_view<T>);
  host_row_sequences_.clear();
  host_query_positions_.clear();
  host_key_limits_.clear();
  host_keys_.clear();
  host_extents_.clear();
  prompts_.clear();
  bool prompts_only = !lists_.outputs_only;
  for (Work* work : {&many_work_, &few_work_}) {
    work->tiles.clear();
    work->joins.clear();
    work->parts = 0;
  }
  for (Index s = 0; s < plan.sequences(); ++s) {
    const lazyllm::SequencePlan part = plan.sequence(s);
    const auto sequence = static_cast<std::int32_t>(s);
    tokens_ = std::max(tokens_, part.tokens);
    host_row_sequences_.insert(host_row_sequences_.end(), part.positions.size(), sequence);
    const std::size_t rows = lists_.outputs_only ? static_cast<std::size_t>(part.outputs) : part.positions.size();
    const Positions positions = part.positions.last(rows);
    const Positions limits = part.key_limits.last(rows);
    const bool listed = !lazyllm::is_prefix(part.keys);
    host_extents_.push_back({static_cast<std::int32_t>(host_query_positions_.size()), static_cast<std::int32_t>(rows),
                             listed ? static_cast<std::int32_t>(host_keys_.size()) : -1});
    host_query_positions_.insert(host_query_positions_.end(), positions.begin(), positions.end());
    host_key_limits_.insert(host_key_limits_.end(), limits.begin(), limits.end());
    if (listed) host_keys_.insert(host_keys_.end(), part.keys.begin(), part.keys.end());
    if (rows == 0) continue;
    cut(sequence, limits);
    const KvView<T>& cache = caches[static_cast<std::size_t>(s)];
    prompts_only &= part.mask == lazyllm::Mask::causal && !listed && cache.page_table == nullptr;
    prompts_.push_back({host_extents_.back().first_row, host_extents_.back().rows, cache});
  }
  if (!prompts_only) prompts_.clear();
  for (Work* work : {&many_work_, &few_work_}) {
    std::ranges::sort(work->tiles, std::greater<>(), [](const Tile& tile) { return tile.last_key - tile.first_key; });
  }
  upload(context);
  uploaded_ = true;
}

template <class T>
void DevicePlan<T>::check(const lazyllm::LayerPlan& plan, std::span<const KvView<T>> caches) const {
  if (std::ssize(caches) != plan.sequences())
    fail("DevicePlan: ", caches.size(), " caches for ", plan.sequences(), " sequences");
  for (Index s = 0; s < plan.sequences(); ++s) {
    const KvView<T>& cache = caches[static_cast<std::size_t>(s)];
    const lazyllm::SequencePlan part = plan.sequence(s);
    if (part.tokens > cache.capacity)
      fail("DevicePlan: sequence ", s, " has ", part.tokens, " tokens, out of range 0 to ", cache.capacity,
           ", the capacity of its cache");
    if (cache.page_table != nullptr &&
        (cache.page_size < 1 || !std::has_single_bit(static_cast<std::size_t>(cache.page_size))))
      fail("DevicePlan: page size ", cache.page_size, " of sequence ", s, " is not a power of two");
  }
}

template <class T>
bool DevicePlan<T>::on_device(const lazyllm::LayerPlan& plan, std::span<const KvView<T>> caches) const {
  return uploaded_ && lists_.outputs_only == outputs_only(plan) && equal(lists_.outputs, plan.outputs()) &&
         equal(lists_.caches, caches) && equal(lists_.row_indptr, plan.row_indptr()) &&
         equal(lists_.key_indptr, plan.key_indptr()) && equal(lists_.positions, plan.positions()) &&
         equal(lists_.key_limits, plan.key_limits()) && equal(lists_.keys, plan.keys());
}

/// Cuts a sequence's queries into tiles, and the keys of each into parts where whole tiles would leave most of the
/// device idle.
template <class T>
void DevicePlan<T>::cut(std::int32_t sequence, Positions limits) {
  const Index group = shape_.heads / shape_.kv_heads;
  const Index queries = std::ssize(limits) * group;
  const bool few = queries <= 4 * few_queries;
  Work& work = few ? few_work_ : many_work_;
  const Index size = few ? few_queries : many_queries;
  const Index tiles = (queries + size - 1) / size;
  for (Index tile = tiles - 1; tile >= 0; --tile) {
    const Index last_query = std::min(queries, (tile + 1) * size) - 1;
    const Index keys = limits[static_cast<std::size_t>(last_query / group)];
    const Index wanted = (few ? few_blocks : many_blocks) / (tiles * shape_.kv_heads);
    const Index most = std::clamp<Index>(wanted, 1, std::max<Index>(1, keys / min_part));
    const Index part = ((keys + most - 1) / most + part_multiple - 1) / part_multiple * part_multiple;
    const auto first_query = static_cast<std::int32_t>(tile * size);
    if (keys <= part) {
      work.tiles.push_back({sequence, first_query, 0, static_cast<std::int32_t>(keys), -1});
      continue;
    }
    const auto parts = static_cast<std::int32_t>((keys + part - 1) / part);
    work.joins.push_back({sequence, first_query, work.parts, parts});
    for (Index first = 0; first < keys; first += part) {
      work.tiles.push_back({sequence, first_query, static_cast<std::int32_t>(first),
                            static_cast<std::int32_t>(std::min(keys, first + part)), work.parts++});
    }
  }
}

template <class T>
void DevicePlan<T>::upload(lazyllm::cuda::Context& context) {
  kernels::Layout layout;
  std::vector<std::pair<Index, std::span<const std::byte>>> pieces;
  const auto add = [&]<class Value>(const std::vector<Value>& values) {
    // In whole KiB, so that the lists of the next decode steps begin where these do.
    const auto bytes = std::as_bytes(std::span(values));
    const Index offset = layout.add<std::byte>((std::ssize(bytes) + 1023) / 1024 * 1024);
    pieces.emplace_back(offset, bytes);
    return offset;
  };
  const Index positions = add(lists_.positions);
  const Index row_sequences = add(host_row_sequences_);
  const Index query_positions = add(host_query_positions_);
  const Index key_limits = add(host_key_limits_);
  const Index keys = add(host_keys_);
  const Index extents = add(host_extents_);
  const Index caches = add(lists_.caches);
  const Index many_tiles = add(many_work_.tiles);
  const Index many_joins = add(many_work_.joins);
  const Index few_tiles = add(few_work_.tiles);
  const Index few_joins = add(few_work_.joins);
  memory_.reserve(context, layout.bytes(), 1);
  std::byte* const memory = memory_.rows().data;
  context.upload(memory, layout.bytes(), [&](std::byte* host) {
    for (const auto& [offset, bytes] : pieces) {
      if (!bytes.empty()) std::memcpy(host + offset, bytes.data(), bytes.size());
    }
  });
  using kernels::at;
  positions_ = at<const Position>(memory, positions);
  row_sequences_ = at<const std::int32_t>(memory, row_sequences);
  query_positions_ = at<const Position>(memory, query_positions);
  key_limits_ = at<const Position>(memory, key_limits);
  keys_ = at<const Position>(memory, keys);
  extents_ = at<const Extent>(memory, extents);
  caches_ = at<const KvView<T>>(memory, caches);
  const auto tiles = [&](const Work& work, Index tile_offset, Index join_offset) {
    return Tiles{at<const Tile>(memory, tile_offset), at<const Join>(memory, join_offset), std::ssize(work.tiles),
                 std::ssize(work.joins), work.parts};
  };
  many_ = tiles(many_work_, many_tiles, many_joins);
  few_ = tiles(few_work_, few_tiles, few_joins);
}

template class DevicePlan<float>;
template class DevicePlan<__half>;
template class DevicePlan<__nv_bfloat16>;

}  // namespace llama
