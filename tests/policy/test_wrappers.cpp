#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "lazyllm/policy/policies.hpp"
#include "lazyllm/policy/wrappers.hpp"

using namespace lazyllm;
using Kind = Selection::Kind;

namespace {

const KeepRatio half(Schedule{{2, 0.5}});

PrunePoint at(Index tokens, Index new_tokens = 1) {
  return {.layers_run = 2, .layers = 8, .active = tokens, .tokens = tokens, .new_tokens = new_tokens};
}

}  // namespace

TEST_CASE("protects: by place, by mask, and the last token") {
  const std::vector<std::uint8_t> mask{0, 0, 0, 1, 0, 2};
  const Selection selection{.protect_first = 2, .protect_last = 3, .protect_mask = mask};
  const std::vector<bool> expected{true, true, false, true, false, true, false, true, true, true};
  for (Position p = 0; p < 10; ++p) {
    CAPTURE(p);
    CHECK(selection.protects(p, 10) == expected[static_cast<std::size_t>(p)]);
    CHECK(Selection{}.protects(p, 10) == (p == 9));
  }
}

TEST_CASE("ProtectFirst, ProtectLast and ProtectMask add protection to what the policy selects") {
  const std::vector<std::uint8_t> mask{1, 0, 1};
  const Selection first = ProtectFirst{half, 3}(at(40));
  CHECK(first.kind == Kind::count);
  CHECK(first.count == 20);
  CHECK(first.protect_first == 3);
  CHECK(first.protect_last == 1);

  const Selection last = ProtectLast{half, 4}(at(40));
  CHECK(last.count == 20);
  CHECK(last.protect_first == 0);
  CHECK(last.protect_last == 4);
  CHECK(ProtectLast{half, 0}(at(40)).protect_last == 1);

  const Selection masked = ProtectMask{half, mask}(at(40));
  CHECK(masked.count == 20);
  CHECK(masked.protect_mask.data() == mask.data());
  CHECK(masked.protect_mask.size() == 3);
}

TEST_CASE("nested protection of one kind: the larger length wins, the outer mask wins") {
  CHECK(ProtectFirst{ProtectFirst{half, 5}, 3}(at(40)).protect_first == 5);
  CHECK(ProtectFirst{ProtectFirst{half, 3}, 5}(at(40)).protect_first == 5);
  CHECK(ProtectLast{ProtectLast{half, 5}, 3}(at(40)).protect_last == 5);
  const std::vector<std::uint8_t> inner{1}, outer{0, 1};
  CHECK(ProtectMask{ProtectMask{half, inner}, outer}(at(40)).protect_mask.data() == outer.data());
}

TEST_CASE("MinTokens prunes from its length on") {
  const MinTokens policy{half, 10};
  CHECK(policy(at(9)).kind == Kind::all);
  CHECK(policy(at(10)).kind == Kind::count);
  CHECK(policy(at(11)).count == 6);
}

TEST_CASE("PrefillOnly prunes in steps of several tokens") {
  const PrefillOnly policy{half};
  CHECK(policy(at(10, 1)).kind == Kind::all);
  CHECK(policy(at(10, 2)).kind == Kind::count);
  CHECK(policy(at(10, 10)).count == 5);
}

TEST_CASE("wrappers compose in any order") {
  const ProtectFirst policy{ProtectLast{MinTokens{half, 10}, 4}, 2};
  static_assert(SelectionPolicy<decltype(policy)>);
  CHECK(policy(at(9)).kind == Kind::all);
  const Selection selection = policy(at(20));
  CHECK(selection.kind == Kind::count);
  CHECK(selection.count == 10);
  CHECK(selection.protect_first == 2);
  CHECK(selection.protect_last == 4);

  const PrefillOnly outer{policy};
  CHECK(outer(at(20, 1)).kind == Kind::all);
  CHECK(outer(at(20, 20)).count == 10);
  CHECK(outer(at(20, 20)).protect_first == 2);
  CHECK(outer(at(9, 9)).kind == Kind::all);

  const MinTokens inside_out{ProtectFirst{ProtectLast{half, 4}, 2}, 10};
  CHECK(inside_out(at(20)).protect_last == 4);
  CHECK(inside_out(at(20)).protect_first == 2);
  CHECK(inside_out(at(9)).kind == Kind::all);
}

TEST_CASE("wrappers hold a policy that is chosen at run time, or a lambda") {
  using Chosen = std::function<Selection(const PrunePoint&)>;
  Chosen chosen = half;
  chosen = ProtectFirst<Chosen>{chosen, 3};
  CHECK(chosen(at(40)).protect_first == 3);
  CHECK(chosen(at(40)).count == 20);
  const ProtectLast wrapped{[](const PrunePoint&) { return Selection{.kind = Kind::mass, .mass = 0.9}; }, 6};
  CHECK(wrapped(at(40)).mass == 0.9);
  CHECK(wrapped(at(40)).protect_last == 6);
  CHECK(ProtectFirst{RandomDrop(Schedule{{2, 0.5}}, 7), 1}(at(40)).random_seed == 7);
}
