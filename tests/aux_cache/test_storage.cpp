#include <Eigen/Core>
#include <span>
#include <vector>

#include "lazyllm/lazyllm.hpp"

/// What the concept takes and, member by member, what it does not.
using namespace lazyllm;

namespace {

template <int missing>
struct FakeStorage {
  using context_type = cpu::Context;
  using value_type = float;
  void reserve(cpu::Context&, Index) requires(missing != 1);
  void acquire(cpu::Context&, std::span<Index>) requires(missing != 2);
  void release(Index) requires(missing != 3);
  void check(cpu::Context&) const requires(missing != 7);
  FakeStorage make_empty() const requires(missing != 4);
  RowsView<float> rows() const requires(missing != 5);
  Index hidden_size() const requires(missing != 6);
};
struct StorageOfFloatSize : FakeStorage<6> {
  float hidden_size() const;
};
struct StorageOfNoBackend : FakeStorage<-1> {
  using context_type = int;
  void reserve(int, Index);
  void acquire(int, std::span<Index>);
  void check(int) const;
  StorageOfNoBackend make_empty() const;
};
struct PinnedStorage : FakeStorage<-1> {
  PinnedStorage(const PinnedStorage&) = delete;
  PinnedStorage make_empty() const;
};
static_assert(AuxStorage<cpu::OwnStorage<float>> && AuxStorage<cpu::PooledStorage<Eigen::half>>);
static_assert(AuxStorage<FakeStorage<-1>>);
static_assert(!AuxStorage<FakeStorage<1>> && !AuxStorage<FakeStorage<2>> && !AuxStorage<FakeStorage<3>>);
static_assert(!AuxStorage<FakeStorage<4>> && !AuxStorage<FakeStorage<5>> && !AuxStorage<FakeStorage<6>>);
static_assert(!AuxStorage<FakeStorage<7>>);
static_assert(!AuxStorage<StorageOfFloatSize> && !AuxStorage<PinnedStorage> && !AuxStorage<std::vector<float>>);
static_assert(!AuxStorage<StorageOfNoBackend>);

using Aux = AuxCache<cpu::OwnStorage<float>>;
/// An Aux Cache of its own type, of which a member may be another one.
struct OwnAux : Aux {
  OwnAux fork(cpu::Context&) const;
};
struct WithoutLink : OwnAux {
  WithoutLink fork(cpu::Context&) const;
  void link();
};
struct WithFloatSlots : OwnAux {
  WithFloatSlots fork(cpu::Context&) const;
  float slot(Position) const;
};
struct WithForkOfAnotherType : Aux {};
static_assert(ParksRows<Aux> && ParksRows<OwnAux>);
static_assert(!ParksRows<WithoutLink> && !ParksRows<WithFloatSlots> && !ParksRows<WithForkOfAnotherType>);
static_assert(!ParksRows<cpu::OwnStorage<float>> && !ParksRows<std::vector<float>>);

}  // namespace
