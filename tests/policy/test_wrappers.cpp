#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lazyllm/policy/policies.hpp"
#include "lazyllm/policy/wrappers.hpp"
#include "lazyllm/pruner/token_pruner.hpp"

using namespace lazyllm;
using Kind = Selection::Kind;

namespace {

const KeepRatio half(Schedule{{2, 0.5}});

PrunePoint at(Index tokens, Index new_tokens = 1) {
  return {.layers_run = 2, .layers = 8, .active_tokens = tokens, .tokens = tokens, .new_tokens = new_tokens};
}

}  // namespace

TEST_CASE("ProtectFirst, ProtectLast and ProtectMask add protection to what the policy selects") {
  const std::vector<std::uint8_t> mask{1, 0, 1};
  const Selection first = ProtectFirst{half, 3}(at(40));
  CHECK(first.kind == Kind::top_k);
  CHECK(first.k == 20);
  CHECK(first.protect_first == 3);
  CHECK(first.protect_last == 1);

  const Selection last = ProtectLast{half, 4}(at(40));
  CHECK(last.k == 20);
  CHECK(last.protect_first == 0);
  CHECK(last.protect_last == 4);
  CHECK(ProtectLast{half, 0}(at(40)).protect_last == 1);

  const Selection masked = ProtectMask{half, mask}(at(40));
  CHECK(masked.k == 20);
  CHECK(masked.protect_mask.data() == mask.data());
  CHECK(masked.protect_mask.size() == 3);
}

TEST_CASE("KeepComputed protects the first continuations in decode steps") {
  const std::vector<Position> followed{7, 30, 2};
  const auto select = [&](Index wanted, Index new_tokens) {
    PrunePoint point = at(40, new_tokens);
    point.continuations = followed;
    const KeepComputed policy{half, 1, std::nullopt, wanted};
    const auto protect = policy(point).protect;
    return std::vector<Position>(protect.begin(), protect.end());
  };
  CHECK(select(0, 1).empty());
  CHECK(select(2, 1) == std::vector<Position>{7, 30});
  CHECK(select(9, 1) == followed);
  CHECK(select(2, 40).empty());
}

TEST_CASE("KeepComputed revives only continuations where fewer layers than revive_from have run") {
  const std::vector<Position> followed{7, 30, 2};
  PrunePoint point = at(40);
  point.continuations = followed;
  const KeepComputed before{half, 5, 20, 2, 3}, there{half, 5, 20, 2, 2}, no_first{half, 5, std::nullopt, 2, 3};
  CHECK(before(point).max_revived == 20);  // the first step has its own number
  CHECK(no_first(point).kind == Kind::not_pruned_before);
  point.decoded_tokens = 1;
  CHECK(before(point).kind == Kind::not_pruned_before);
  CHECK(std::ranges::equal(before(point).protect, std::vector<Position>{7, 30}));
  CHECK(there(point).kind == Kind::top_k);
  CHECK(there(point).max_revived == 5);
  CHECK(before(at(40, 40)).k == 20);  // a prompt is pruned
}

TEST_CASE("nested protection of one kind: the larger length wins, the outer mask wins") {
  CHECK(ProtectFirst{ProtectFirst{half, 5}, 3}(at(40)).protect_first == 5);
  CHECK(ProtectFirst{ProtectFirst{half, 3}, 5}(at(40)).protect_first == 5);
  CHECK(ProtectLast{ProtectLast{half, 5}, 3}(at(40)).protect_last == 5);
  const std::vector<std::uint8_t> inner{1}, outer{0, 1};
  CHECK(ProtectMask{ProtectMask{half, inner}, outer}(at(40)).protect_mask.data() == outer.data());
}

TEST_CASE("negative counts are refused where the policy is asked") {
  const auto asked = [](const AnyPolicy& policy) {
    try {
      TokenPruner<AnyPolicy>(policy).selection(at(40));
    } catch (const invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  CHECK(asked(ProtectFirst{half, -3}).find("protect_first -3 must be at least 0") != std::string::npos);
  CHECK(asked(ProtectLast{half, -3}).find("protect_last -3 at least 1") != std::string::npos);
  CHECK(asked(ReviveAtMost{half, -1}).find("max_revived -1") != std::string::npos);
  CHECK(asked(KeepComputed{half, -2}) == "lazyllm: KeepComputed: revived -2 is out of range, at least 0");
  CHECK(asked(KeepComputed{half, 7, -5}) == "lazyllm: KeepComputed: first_revived -5 is out of range, at least 0");
  CHECK(asked(KeepComputed{half, 7, {}, -1}) == "lazyllm: KeepComputed: continuations -1 is out of range, at least 0");
  CHECK(asked(KeepComputed{half, 7, {}, 2, -4}) == "lazyllm: KeepComputed: revive_from -4 is out of range, at least 0");
  CHECK(asked(MinTokens{half, -1}) == "lazyllm: MinTokens: tokens -1 is out of range, at least 0");
}

TEST_CASE("ReviveAtMost limits what is revived; the least of nested limits wins") {
  CHECK(half(at(40)).max_revived == Selection::unlimited);
  const Selection selection = ReviveAtMost{half, 7}(at(40));
  CHECK(selection.kind == Kind::top_k);
  CHECK(selection.k == 20);
  CHECK(selection.max_revived == 7);
  CHECK(ReviveAtMost{half, 0}(at(40)).max_revived == 0);
  CHECK(ReviveAtMost{ReviveAtMost{half, 7}, 9}(at(40)).max_revived == 7);
  CHECK(ReviveAtMost{ReviveAtMost{half, 9}, 7}(at(40)).max_revived == 7);
}

TEST_CASE("KeepComputed keeps in decode steps what costs no work") {
  const KeepComputed policy{half, 7};
  CHECK(policy(at(40, 2)).k == 20);
  CHECK(policy(at(40, 2)).max_revived == Selection::unlimited);
  const Selection selection = policy(at(40, 1));
  CHECK(selection.kind == Kind::top_k);
  CHECK(selection.k == 40);
  CHECK(selection.max_revived == 7);
  // Within it a limit is that of prompts, around it that of all steps.
  CHECK(KeepComputed{ReviveAtMost{half, 5}, 7}(at(40, 2)).max_revived == 5);
  CHECK(KeepComputed{ReviveAtMost{half, 5}, 7}(at(40, 1)).max_revived == 7);
  CHECK(KeepComputed{ReviveAtMost{half, 5}, 7, 9}(at(40, 1)).max_revived == 9);
  CHECK(ReviveAtMost{KeepComputed{half, 7}, 5}(at(40, 1)).max_revived == 5);
  PrunePoint point = at(40, 1);
  for (const Index decoded_tokens : {0, 1, 2, 9}) {
    point.decoded_tokens = decoded_tokens;
    CHECK(KeepComputed{half, 7, 20}(point).max_revived == (decoded_tokens == 0 ? 20 : 7));
    CHECK(KeepComputed{half, 7}(point).max_revived == 7);
  }
  CHECK(KeepComputed{KeepAll(), 7}(at(40, 1)).kind == Kind::all);
  CHECK(KeepComputed{KeepAll(), 7, std::nullopt, 0, 5}(at(40, 1)).kind == Kind::all);
  const StaticPruning fixed(Schedule{{2, 0.5}});
  CHECK(KeepComputed{fixed,
                     7}({.layers_run = 2, .layers = 6, .active_tokens = 40, .tokens = 41, .new_tokens = 1, .steps = 1})
            .kind == Kind::not_pruned_before);
}

TEST_CASE("new tokens that are all returned, as drafted ones are, make a decode step") {
  PrunePoint point = at(40, 5);
  for (const Index outputs : {0, 1, 4, 5}) {
    CAPTURE(outputs);
    point.outputs = outputs;
    CHECK(point.decodes() == (outputs == 5));
    CHECK(KeepComputed{half, 7}(point).k == (outputs == 5 ? 40 : 20));
    CHECK(PrefillOnly{half}(point).ranks() == (outputs != 5));
  }
  point = at(40, 1);
  point.outputs = 0;
  CHECK(point.decodes());
}

TEST_CASE("MinTokens prunes from its length on") {
  const MinTokens policy{half, 10};
  CHECK(policy(at(9, 9)).kind == Kind::all);
  CHECK(policy(at(10)).kind == Kind::top_k);
  CHECK(policy(at(11)).k == 6);
  // In decode steps what was parked when the sequence was longer stays parked.
  CHECK(policy(at(9, 1)).kind == Kind::not_pruned_before);
  CHECK(MinTokens{KeepAll(), 10}(at(9, 1)).kind == Kind::all);
}

TEST_CASE("PrefillOnly prunes in prompts") {
  const PrefillOnly policy{half};
  CHECK(policy(at(10, 1)).kind == Kind::all);
  CHECK(policy(at(10, 2)).kind == Kind::top_k);
  CHECK(policy(at(10, 10)).k == 5);
}

TEST_CASE("wrappers compose in any order") {
  const ProtectFirst policy{ProtectLast{MinTokens{half, 10}, 4}, 2};
  static_assert(SelectionPolicy<decltype(policy)>);
  CHECK(policy(at(9, 9)).kind == Kind::all);
  const Selection selection = policy(at(20));
  CHECK(selection.kind == Kind::top_k);
  CHECK(selection.k == 10);
  CHECK(selection.protect_first == 2);
  CHECK(selection.protect_last == 4);

  const PrefillOnly outer{policy};
  CHECK(outer(at(20, 1)).kind == Kind::all);
  CHECK(outer(at(20, 20)).k == 10);
  CHECK(outer(at(20, 20)).protect_first == 2);
  CHECK(outer(at(9, 9)).kind == Kind::all);

  const MinTokens inside_out{ProtectFirst{ProtectLast{half, 4}, 2}, 10};
  CHECK(inside_out(at(20)).protect_last == 4);
  CHECK(inside_out(at(20)).protect_first == 2);
  CHECK(inside_out(at(9, 9)).kind == Kind::all);
}

TEST_CASE("wrappers hold a policy that is chosen at run time, or a lambda") {
  using Chosen = AnyPolicy;
  Chosen chosen = half;
  chosen = ProtectFirst<Chosen>{chosen, 3};
  CHECK(chosen(at(40)).protect_first == 3);
  CHECK(chosen(at(40)).k == 20);
  const ProtectLast wrapped{[](const PrunePoint&) { return Selection{.kind = Kind::top_p, .p = 0.9}; }, 6};
  CHECK(wrapped(at(40)).p == 0.9);
  CHECK(wrapped(at(40)).protect_last == 6);
  CHECK(ReviveAtMost{wrapped, 3}(at(40)).max_revived == 3);
}
