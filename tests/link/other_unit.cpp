#include "link/units.hpp"

lazyllm::Index lazyllm::test::computed_in_the_other_unit(Sequence& sequence, const Pruner& pruner, Index tokens) {
  return computed(sequence, pruner, tokens);
}
