#pragma once

#include <cstddef>

#include "lazyllm/engine/host_device.hpp"
#include "lazyllm/engine/positions.hpp"

namespace lazyllm::cuda::detail {

/// Lays out several arrays in one piece of memory.
class Layout {
 public:
  static constexpr Index alignment = 16;

  /// Appends `count` elements of T. Returns where they begin, in bytes.
  template <class T>
  Index add(Index count) {
    static_assert(alignof(T) <= alignment);
    const Index offset = bytes_;
    bytes_ += (count * static_cast<Index>(sizeof(T)) + alignment - 1) / alignment * alignment;
    return offset;
  }

  Index bytes() const { return bytes_; }

 private:
  Index bytes_ = 0;
};

/// The array that begins `offset` bytes into `memory`.
template <class T>
T* at(std::byte* memory, Index offset) {
  return reinterpret_cast<T*>(memory + offset);
}

/// The tasks divide the numbers from 0 on: task t has those from `tasks[t].*first` to the next task's. Returns the task
/// of `number`, by binary search.
template <class Task, class Number>
LAZYLLM_HOST_DEVICE const Task& task_of(const Task* tasks, int count, Number Task::*first, Number number) {
  int begin = 0;
  while (count > 1) {  // it is among tasks [begin, begin + count)
    const int half = count / 2;
    const bool upper = tasks[begin + half].*first <= number;
    begin += upper ? half : 0;
    count = upper ? count - half : half;
  }
  return tasks[begin];
}

}  // namespace lazyllm::cuda::detail
