#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <lazyllm/cuda_context.hpp>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "examples/llama/kernels/cuda/check.hpp"

namespace llama {

/// Work of a stream that comes again and again, as CUDA graphs: captured once, then launched as a whole. `Value` is
/// what the host remembers of each.
template <class Value>
class LaunchGraphs {
 public:
  /// What decides the work: kernels, sizes and addresses.
  using Key = std::vector<std::uint64_t>;

  /// Enqueues the work of `key`, and returns what `enqueue()`, which enqueues it, has returned last. The first time it
  /// runs as it is, so that buffers grow and libraries choose; the second time it is captured; after that `enqueue` is
  /// not called. While it is captured it may enqueue kernels only: no copies from host memory, no allocations. Throws
  /// what `enqueue` throws, and `lazyllm::cuda_error`.
  template <class Enqueue>
  const Value& run(lazyllm::cuda::Context& context, const Key& key, const Enqueue& enqueue) {
    if (graphs_.size() == max_graphs && !graphs_.contains(key)) {
      context.synchronize();  // one of them may still run
      graphs_.clear();
    }
    const auto [place, is_new] = graphs_.try_emplace(key);
    Graph& graph = place->second;
    if (is_new) {
      try {
        graph.value = enqueue();
      } catch (...) {
        graphs_.erase(place);
        throw;
      }
      return graph.value;
    }
    if (!graph.launchable) capture(context.stream(), graph, enqueue);
    kernels::check(cudaGraphLaunch(graph.launchable.get(), context.stream()), "cudaGraphLaunch");
    return graph.value;
  }

 private:
  template <class Handle, cudaError_t (*destroy)(Handle)>
  struct Destroy {
    using pointer = Handle;
    void operator()(Handle handle) const {
      if (destroy(handle) != cudaSuccess) cudaGetLastError();  // nothing is left to do about it
    }
  };
  template <class Handle, cudaError_t (*destroy)(Handle)>
  using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, destroy>>;

  struct Graph {
    Owner<cudaGraphExec_t, cudaGraphExecDestroy> launchable;
    Value value = {};
  };

  /// More shapes than decode steps take turns with.
  static constexpr std::size_t max_graphs = 1024;

  template <class Enqueue>
  static void capture(cudaStream_t stream, Graph& graph, const Enqueue& enqueue) {
    kernels::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    cudaGraph_t captured = nullptr;
    try {
      graph.value = enqueue();
    } catch (...) {
      if (cudaStreamEndCapture(stream, &captured) != cudaSuccess) cudaGetLastError();
      if (captured != nullptr) cudaGraphDestroy(captured);
      throw;
    }
    const cudaError_t code = cudaStreamEndCapture(stream, &captured);
    const Owner<cudaGraph_t, cudaGraphDestroy> owner(captured);
    kernels::check(code, "cudaStreamEndCapture");
    cudaGraphExec_t launchable = nullptr;
    kernels::check(cudaGraphInstantiate(&launchable, captured, 0), "cudaGraphInstantiate");
    graph.launchable.reset(launchable);
  }

  std::map<Key, Graph> graphs_;
};

}  // namespace llama
