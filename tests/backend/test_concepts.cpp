#include <span>

#include "lazyllm/lazyllm.hpp"

/// What the concept takes and, member by member, what it does not.
using namespace lazyllm;

namespace {

template <int missing>
struct FakeBackend {
  template <class T>
  struct Buffer {
    void reserve(FakeBackend&, Index, Index) requires(missing != 0);
    RowsView<T> rows() const requires(missing != 1);
    void check(const FakeBackend&) const requires(missing != 9);
  };
  friend void copy_rows(FakeBackend&, std::span<const RowCopy<float>>) requires(missing != 2) {}
  friend void accumulate_scores(FakeBackend&, std::span<float>, std::span<float>, bool) requires(missing != 3) {}
  template <class TaskOf>
  friend void attention_scores(FakeBackend&, const QueryRows<float>&, Index, TaskOf) requires(missing != 4) {}
  friend void pool_scores(FakeBackend&, std::span<const PoolTask>) requires(missing != 5) {}
  friend void select_tokens(FakeBackend&, std::span<const SelectionTask>, KeptTokens&) requires(missing != 6) {}
  friend void copy_to_host(FakeBackend&, RowsView<const float>, float*) requires(missing != 7) {}
  friend void copy_from_host(FakeBackend&, const float*, RowsView<float>) requires(missing != 8) {}
};
struct Empty {};
static_assert(Backend<cpu::Context> && Backend<FakeBackend<-1>>);
static_assert(!Backend<FakeBackend<0>> && !Backend<FakeBackend<1>> && !Backend<FakeBackend<2>>);
static_assert(!Backend<FakeBackend<3>> && !Backend<FakeBackend<4>> && !Backend<FakeBackend<5>>);
static_assert(!Backend<FakeBackend<6>> && !Backend<FakeBackend<7>> && !Backend<FakeBackend<8>> && !Backend<Empty>);
static_assert(!Backend<FakeBackend<9>>);

}  // namespace
