#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <memory>
#include <span>

#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/engine/rows.hpp"

namespace lazyllm::cpu {

/// Execution context of the CPU backend: how many threads its row operations use, and their scratch memory. One context
/// serves one thread of the caller at a time. Every operation has finished when its call returns, and gives the same
/// bits for any number of threads.
class Context {
 public:
  /// Throws `invalid_argument` unless `threads` is at least 1. Without OpenMP one thread is used.
  explicit Context(int threads = 1) : threads_(threads) {
    if (threads < 1) lazyllm::detail::fail("cpu::Context: threads ", threads, " is out of range, at least 1");
  }

  int threads() const { return threads_; }  ///< at least 1

  /// Growable matrix in host memory; growing keeps the rows. New rows are uninitialised.
  template <class T>
  class Buffer {
   public:
    using value_type = T;  ///< of the elements

    /// Makes room for `rows` rows of `width` elements, at least doubling what is there when it must grow. The width may
    /// only change while the buffer is empty.
    void reserve(Context&, Index rows, Index width) {
      const RowsView<T> old = this->rows();
      if (rows <= old.rows) return;
      const Index grown = old.rows == 0 ? rows : std::max(rows, 2 * old.rows);
      auto data = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(grown * width));
      if (old.rows > 0) std::copy_n(old.data, old.rows * old.width, data.get());
      data_ = std::move(data);
      rows_ = grown;
      width_ = width;
    }

    /// Any context may work on the rows.
    void check(const Context&) const {}

    /// All rows that there is room for, none where the buffer was moved from.
    RowsView<T> rows() const { return {data_.get(), data_ ? rows_ : 0, width_}; }

   private:
    std::unique_ptr<T[]> data_;
    Index rows_ = 0;
    Index width_ = 0;
  };

  /// `count` numbers of scratch memory, aligned for Eigen, valid until the next call.
  template <class T = float>
  requires(sizeof(T) == sizeof(float)) std::span<T> scratch(Index count) {
    if (count > scratch_.size()) {
      Eigen::ArrayXf grown(std::max(count, 2 * scratch_.size()));  // resize would leave a freed array when this throws
      scratch_.swap(grown);
    }
    return {reinterpret_cast<T*>(scratch_.data()), static_cast<std::size_t>(count)};
  }

  /// Runs `body(first, last)` over [0, count) in chunks of `grain`, in parallel. The chunks do not depend on the number
  /// of threads. `body` must not throw.
  template <class Body>
  void for_chunks(Index count, Index grain, const Body& body) {
    const Index chunks = (count + grain - 1) / grain;
    if (threads_ == 1 || chunks == 1) {  // even a region of one thread costs time, and allocates in some runtimes
      in_chunks(count, grain, body);
      return;
    }
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads_) schedule(static)
#endif
    for (Index chunk = 0; chunk < chunks; ++chunk) body(chunk * grain, std::min(count, (chunk + 1) * grain));
  }

  /// The same by the caller alone: for work that is done before another thread is awake.
  template <class Body>
  static void in_chunks(Index count, Index grain, const Body& body) {
    for (Index first = 0; first < count; first += grain) body(first, std::min(count, first + grain));
  }

 private:
  int threads_;
  Eigen::ArrayXf scratch_;
};

}  // namespace lazyllm::cpu
