#include <doctest/doctest.h>

#include <Eigen/Core>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lazyllm/lazyllm.hpp"

using namespace lazyllm;

#define LAZYLLM_STORAGES                                                                                             \
  cpu::OwnStorage<float>, cpu::OwnStorage<Eigen::bfloat16>, cpu::OwnStorage<Eigen::half>, cpu::PooledStorage<float>, \
      cpu::PooledStorage<Eigen::bfloat16>, cpu::PooledStorage<Eigen::half>

namespace {

using Bytes = std::vector<std::byte>;

/// Leaves the rows as they are, so that a parked row is what `begin` was given.
struct Block {
  template <class T>
  void attend(cpu::Context&, const LayerPlan&, RowsView<T>) {}
  void token_scores(cpu::Context&, const LayerPlan& plan, std::span<const ScoreWindow> windows) {
    for (const ScoreWindow& window : windows) {
      const Positions keys = plan.sequence(window.sequence).keys;
      for (std::size_t i = 0; i < keys.size(); ++i) window.scores[i] = static_cast<float>(keys[i] * 7 % 5 + 1);
    }
  }
};

template <class Storage>
struct Saved {
  using T = typename Storage::value_type;
  using Sequence = lazyllm::Sequence<AuxCache<Storage>>;
  using Pruner = TokenPruner<AnyPolicy>;
  static constexpr Index hidden_size = 3;

  /// Two steps of `tokens` tokens in all; some are parked at depth 1, some at depth 2.
  explicit Saved(Index tokens) {
    const Pruner pruner{KeepRatio(Schedule{{1, 0.5}, {2, 0.5}})};
    if (tokens > 0) run(sequence, pruner, tokens - 1);
    if (tokens > 0) run(sequence, pruner, 1);
  }

  /// Appends tokens; returns the active tokens of the last layer.
  std::vector<Position> run(Sequence& which, const Pruner& pruner, Index tokens) {
    const RowsView<T> rows = step.begin(context, which, pruner, tokens);
    for (Index i = 0; i < rows.rows * rows.width; ++i) rows.data[i] = static_cast<T>(static_cast<float>(++number));
    LazyDecoderLayer<Block> layer{Block()};
    std::vector<Position> active;
    for (Index l = 0; l < which.layers(); ++l) {
      const LayerPlan plan = step.plan();
      active.assign(plan.keys().begin(), plan.keys().end());
      layer.forward(context, step);
    }
    step.end();
    return active;
  }

  Bytes save() { return sequence.save(context); }
  Sequence restore(std::span<const std::byte> bytes) {
    return Sequence::restore(context, bytes, AuxCache<Storage>(hidden_size));
  }

  /// The message of the error for bytes that cannot be restored, or nothing.
  std::string refused(std::span<const std::byte> bytes) {
    try {
      (void)restore(bytes);
    } catch (const invalid_argument& error) {
      return error.what();
    }
    return {};
  }

  cpu::Context context;
  int number = 0;
  Step<Sequence, Pruner> step;
  Sequence sequence{4, hidden_size};
};

/// Writes a number into the bytes.
template <class Number>
Bytes with(Bytes bytes, std::size_t place, Number number) {
  std::memcpy(bytes.data() + place, &number, sizeof(number));
  return bytes;
}

}  // namespace

TEST_CASE("saved sequence: the hidden size of an Aux Cache of its own comes from the bytes") {
  using Storage = cpu::OwnStorage<float>;
  Saved<Storage> test(40);
  const Bytes bytes = test.save();
  const auto restored = Saved<Storage>::Sequence::restore(test.context, bytes);
  CHECK(restored.aux().hidden_size() == test.sequence.aux().hidden_size());
  CHECK(restored.aux().parked_rows() == test.sequence.aux().parked_rows());
  CHECK(std::ranges::equal(restored.depths(), test.sequence.depths()));
  CHECK_THROWS_AS(Saved<Storage>::Sequence::restore(test.context, std::span(bytes).first(4)), invalid_argument);
}

TEST_CASE_TEMPLATE("saved sequence: restored it is the same, and goes on in the same way", Storage, LAZYLLM_STORAGES) {
  for (const Index tokens : {0, 2, 9, 40}) {
    CAPTURE(tokens);
    Saved<Storage> test(tokens);
    const Bytes bytes = test.save();
    auto restored = test.restore(bytes);
    CHECK(std::ranges::equal(restored.depths(), test.sequence.depths()));
    CHECK(restored.layers() == 4);
    CHECK(restored.steps() == test.sequence.steps());
    CHECK(restored.prompt_end() == test.sequence.prompt_end());
    CHECK(restored.prompt_end() == (tokens > 2 ? tokens - 1 : 0));
    CHECK(restored.aux().parked_rows() == test.sequence.aux().parked_rows());
    CHECK((tokens < 9 || restored.aux().parked_rows() > 0));
    bool equal = true;
    for (Position p = 0; p < tokens; ++p) {
      equal &= restored.aux().holds(p) == test.sequence.aux().holds(p);
      if (!restored.aux().holds(p)) continue;
      const auto* row = restored.aux().rows().row(restored.aux().slot(p));
      const auto* expected = test.sequence.aux().rows().row(test.sequence.aux().slot(p));
      equal &= std::memcmp(row, expected, 3 * sizeof(*row)) == 0;
    }
    CHECK(equal);
    CHECK(restored.save(test.context) == bytes);
    const typename Saved<Storage>::Pruner pruner{KeepRatio(Schedule{{1, 0.3}, {3, 0.3}})};
    test.number = 1000;
    const auto active = test.run(restored, pruner, 5);
    test.number = 1000;
    CHECK(active == test.run(test.sequence, pruner, 5));
    CHECK(restored.save(test.context) == test.save());
  }
}

TEST_CASE("saved sequence: restored into a shared pool beside another one") {
  using Storage = cpu::PooledStorage<float>;
  Saved<Storage> test(20);
  const Bytes bytes = test.save();
  const auto pool = std::make_shared<Storage::Pool>(3);
  auto first = Saved<Storage>::Sequence::restore(test.context, bytes, AuxCache(Storage(pool)));
  auto second = Saved<Storage>::Sequence::restore(test.context, bytes, AuxCache(Storage(pool)));
  CHECK(pool->slots_in_use() == 2 * test.sequence.aux().parked_rows());
  first.clear();
  CHECK(second.save(test.context) == bytes);
}

TEST_CASE("saved sequence: bytes that are cut off anywhere, or too many, are refused") {
  Saved<cpu::OwnStorage<float>> test(9);
  const Bytes bytes = test.save();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    CHECK(test.refused(std::span(bytes).first(size)).starts_with("lazyllm: Sequence::restore: "));
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  CHECK(test.refused(longer) == "lazyllm: Sequence::restore: " + std::to_string(bytes.size() + 1) +
                                    " bytes, the header asks for " + std::to_string(bytes.size()));
  CHECK(test.refused({}) == "lazyllm: Sequence::restore: 0 bytes is out of range, at least 64");
}

TEST_CASE("saved sequence: any bit turned over is refused") {
  for (const Index tokens : {0, 2, 12}) {
    CAPTURE(tokens);
    Saved<cpu::PooledStorage<float>> test(tokens);
    Bytes bytes = test.save();
    bool right = true;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        bytes[i] ^= std::byte{1} << bit;
        const std::string error = test.refused(bytes);
        right &= error.starts_with("lazyllm: Sequence::restore: ");
        bytes[i] ^= std::byte{1} << bit;
      }
    }
    CHECK(right);
  }
}

TEST_CASE("saved sequence: what does not fit is refused by value and range") {
  Saved<cpu::OwnStorage<float>> test(9);
  const Bytes bytes = test.save();
  const std::string where = "lazyllm: Sequence::restore: ";
  CHECK(test.refused(with(bytes, 0, std::uint32_t{7})) == where + "the bytes are not those of a saved sequence");
  CHECK(test.refused(with(bytes, 4, std::uint32_t{1})) == where + "version 1 is not known, it must be 3");
  CHECK(test.refused(with(bytes, 8, std::int64_t{2})) ==
        where + "rows of 3 elements of type half do not fit an Aux Cache of 3 elements of type float");
  CHECK(test.refused(with(bytes, 16, std::int64_t{5})) ==
        where + "rows of 5 elements of type float do not fit an Aux Cache of 3 elements of type float");
  CHECK(test.refused(with(bytes, 24, std::int64_t{0})) ==
        where + "0 layers and 2 steps are out of range 1 to 65535 and from 0");
  CHECK(test.refused(with(bytes, 24, std::int64_t{3})) == where + "depth 4 of position 2 is out of range 1 to 3");
  CHECK(test.refused(with(bytes, 32, std::int64_t{-1})).find("-1 steps") != std::string::npos);
  for (const std::int64_t prompt_end : {-1, 10}) {
    CHECK(test.refused(with(bytes, 40, prompt_end)) ==
          where + "prompt_end " + std::to_string(prompt_end) + " is out of range 0 to 9");
  }
  CHECK(test.refused(with(bytes, 48, std::int64_t{-1})).find("-1 tokens is out of range 0 to") != std::string::npos);
  CHECK(test.refused(with(bytes, 64, std::int32_t{0})) == where + "depth 0 of position 0 is out of range 1 to 4");
  Saved<cpu::OwnStorage<Eigen::bfloat16>> other(9);
  CHECK_THROWS_WITH_AS(
      cpu::Sequence<Eigen::half>::restore(other.context, other.save()),
      (where + "rows of 3 elements of type bfloat16 do not fit an Aux Cache of 3 elements of type half").c_str(),
      invalid_argument);
  auto parked = AuxCache<cpu::OwnStorage<float>>(3);
  parked.acquire(test.context, std::vector<Position>{4});
  using Sequence = Saved<cpu::OwnStorage<float>>::Sequence;
  CHECK_THROWS_WITH_AS(Sequence::restore(test.context, bytes, std::move(parked)),
                       "lazyllm: Sequence::restore: the Aux Cache holds 1 rows, it must be empty", invalid_argument);
}

TEST_CASE("saved sequence: a damaged number of layers asks for no memory") {
  Saved<cpu::OwnStorage<float>> test(0);
  CHECK(test.refused(with(test.save(), 24, std::int64_t{1} << 30)) ==
        "lazyllm: Sequence::restore: 1073741824 layers and 0 steps are out of range 1 to 65535 and from 0");
}
