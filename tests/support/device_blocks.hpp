#pragma once

#include <span>
#include <vector>

#include "support/cuda_memory.hpp"
#include "support/tiny_model.hpp"

namespace lazyllm::test {

/// Runs `block` on the host, on a copy of rows of the device.
template <class T, class Block>
void on_copy(cuda::Context& context, RowsView<T> hidden, const Block& block) {
  std::vector<T> rows = CudaMemory::read(context, hidden);
  block(RowsView<T>(rows.data(), hidden.rows, hidden.width));
  CudaMemory::write(context, rows, hidden.data);
}

/// The tiny model's attention for a backend with memory of its own: it runs on the host, on copies.
template <class T>
struct DeviceAttention {
  const TinyModel* model;
  Index layer;
  const TinyBatch<T>* batch;
  TinyAttention<T> block = {model, layer, batch};
  std::vector<DeviceArray<T>> query_memory = {};
  std::vector<DeviceArray<T>> key_memory = {};  // by sequence

  void attend(cuda::Context& context, const LayerPlan& plan, RowsView<T> hidden) {
    on_copy(context, hidden, [&](RowsView<T> rows) { block.attend(context, plan, rows); });
    query_memory.clear();
    query_memory.emplace_back(context, block.query_rows);
    key_memory.clear();
    for (TinyCache<T>* cache : *batch) {
      key_memory.emplace_back(context, cache->keys[static_cast<std::size_t>(layer)]);
    }
  }

  QueryRows<T> queries(const LayerPlan& plan) const {
    QueryRows<T> rows = block.queries(plan);
    rows.data = query_memory.front().data();
    return rows;
  }

  ContiguousKeys<T> key_view(const LayerPlan& plan, Index s) const {
    ContiguousKeys<T> view = block.key_view(plan, s);
    view.data = key_memory[static_cast<std::size_t>(s)].data();
    return view;
  }
};

template <class T>
const TinyAttention<T>& on_host(const DeviceAttention<T>& block) {
  return block.block;
}

template <class T>
struct DeviceFeedForward {
  const TinyModel* model;
  Index layer;

  void feed_forward(cuda::Context& context, RowsView<T> hidden) {
    TinyFeedForward<T> block{model, layer};
    on_copy(context, hidden, [&](RowsView<T> rows) { block.feed_forward(context, rows); });
  }
};

template <class T>
struct DeviceAdaptedFeedForward {
  const TinyModel* model;
  Index layer;
  const TinyBatch<T>* batch;

  void feed_forward(cuda::Context& context, std::span<const Index> row_indptr, RowsView<T> hidden) {
    TinyAdaptedFeedForward<T> block{model, layer, batch};
    on_copy(context, hidden, [&](RowsView<T> rows) { block.feed_forward(context, row_indptr, rows); });
  }
};

}  // namespace lazyllm::test
