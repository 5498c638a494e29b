#pragma once

#include "examples/llama/base.hpp"

/// \file
/// Threads for the short work of a decode step, which has hundreds of pieces of some ten microseconds, and for products
/// in panels.
namespace llama {

/// `body(first, last, worker)` of some callable object.
struct PartsBody {
  const void* object;
  void (*call)(const void* object, Index first, Index last, int worker);
};

/// Calls `body(first, last, worker)` for ranges that cover [0, parts), by the caller and up to `threads - 1` others. No
/// range goes across a multiple of `grain`. Each worker has neighbouring parts, and then takes from what the others
/// have left. Workers are numbered below `threads`; one does a range at a time. The caller never waits for a thread
/// that has begun nothing: where other processes use the processor, it does that thread's parts itself. A call while
/// another one runs is done by its caller alone. `body` must not throw.
void share_parts(int threads, Index parts, Index grain, PartsBody body);

template <class Body>
void share_parts(int threads, Index parts, Index grain, const Body& body) {
  share_parts(threads, parts, grain, PartsBody{&body, [](const void* object, Index first, Index last, int worker) {
                                                 (*static_cast<const Body*>(object))(first, last, worker);
                                               }});
}

}  // namespace llama
