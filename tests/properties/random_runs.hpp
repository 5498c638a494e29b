#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "lazyllm/core.hpp"
#include "support/naive_lazy.hpp"
#include "support/runs.hpp"
#include "support/tiny_model.hpp"

/// \file
/// Random runs of the library on any backend beside the naive reference. `Memory` is the backend's, see
/// support/cpu_memory.hpp.
namespace lazyllm::test {

using Pruner = TokenPruner<AnyPolicy>;

/// One request in both worlds: the library with an engine's caches, and the naive reference with the scores of
/// `Scorer`, a `Memory`.
template <class Scorer, class Storage>
struct Request {
  using T = typename Storage::value_type;
  using Sequence = lazyllm::Sequence<AuxCache<Storage>>;

  Sequence sequence;
  TinyCache<T> cache;
  NaiveLazy<T, Scorer> naive;
  Pruner pruner;
  AnyPolicy policy;
  std::vector<Index> tokens = {};            // by position
  std::vector<Position> continuations = {};  // of the next step
};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}

  Index between(Index first, Index last) { return std::uniform_int_distribution<Index>(first, last)(engine_); }
  double fraction() { return std::uniform_real_distribution<>(0.05, 1)(engine_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(engine_); }

  Schedule schedule(Index layers) {
    std::vector<LayerKeep> points;
    for (Index layer = 1; layer < layers; ++layer) {
      if (chance(0.5)) points.push_back({layer, chance(0.1) ? 1 : fraction()});
    }
    return Schedule(points);
  }

  AnyPolicy policy(Index layers) {
    AnyPolicy policy;
    if (chance(0.15)) {
      policy = KeepAll();
    } else {
      const NamedPolicy& named = named_policies[detail::to_size(between(0, std::ssize(named_policies) - 1))];
      policy = named.make(schedule(layers));
    }
    if (chance(0.2)) policy = ProtectFirst<AnyPolicy>{policy, between(0, 6)};
    if (chance(0.2)) policy = ProtectLast<AnyPolicy>{policy, between(1, 6)};
    if (chance(0.2)) policy = ProtectMask<AnyPolicy>{policy, mask_};
    if (chance(0.3)) policy = ReviveAtMost<AnyPolicy>{policy, between(0, 8)};
    if (chance(0.2)) policy = KeepComputed<AnyPolicy>{policy, between(0, 4)};
    if (chance(0.2)) policy = KeepComputed<AnyPolicy>{policy, between(0, 2), between(3, 8)};
    if (chance(0.3)) policy = KeepComputed<AnyPolicy>{policy, between(0, 2), {}, between(1, 4)};
    if (chance(0.2)) policy = KeepComputed<AnyPolicy>{policy, between(0, 2), {}, between(0, 4), between(1, 6)};
    if (chance(0.2)) policy = MinTokens<AnyPolicy>{policy, between(0, 20)};
    if (chance(0.1)) policy = PrefillOnly<AnyPolicy>{policy};
    return policy;
  }

  AttentionScore score() {
    AttentionScore score;
    if (chance(0.3)) score.over_heads = Reduce::max;
    if (chance(0.3)) score.last_queries = between(2, 6);
    if (chance(0.3)) score.over_rows = Reduce::max;
    if (chance(0.2)) score.over_layers = true;
    if (chance(0.2)) score.pooling = 2 * between(0, 3) + 1;
    return score;
  }

  std::vector<Index> tokens(Index count, Index vocab) {
    std::vector<Index> ids(static_cast<std::size_t>(count));
    for (Index& id : ids) id = between(0, vocab - 1);
    return ids;
  }

 private:
  std::mt19937 engine_;
  std::vector<std::uint8_t> mask_ = {0, 1, 0, 0, 0, 0, 1, 0, 0, 1};
};

/// How a prompt is cut, into chunks, and its rows into steps; and how many of its tokens are returned.
struct Cut {
  Index chunk = std::numeric_limits<Index>::max();
  Index max_rows = std::numeric_limits<Index>::max();
  Index outputs = 1;
};

/// An engine around the tiny model.
template <class Memory, class Storage, class AttentionBlock, class FeedForwardBlock, class Scorer = Memory>
struct Engine {
  using Context = typename Storage::context_type;
  using T = typename Storage::value_type;
  using Sequence = lazyllm::Sequence<AuxCache<Storage>>;
  using Entry = typename Step<Sequence, Pruner>::Entry;
  using Result = typename NaiveLazy<T, Scorer>::Result;
  using Request = test::Request<Scorer, Storage>;
  static constexpr bool has_adapters = FeedForwardPerSequence<FeedForwardBlock, Context, T>;

  Engine(const TinyModel& shared_model, int threads) : model(shared_model), context(Memory::make_context(threads)) {
    for (Index layer = 0; layer < model.shape().layers; ++layer) {
      if constexpr (std::is_same_v<FeedForwardBlock, NoFeedForward>) {
        layers.emplace_back(AttentionBlock{&model, layer, &batch});
      } else if constexpr (has_adapters) {
        layers.emplace_back(AttentionBlock{&model, layer, &batch}, FeedForwardBlock{&model, layer, &batch});
      } else {
        layers.emplace_back(AttentionBlock{&model, layer, &batch}, FeedForwardBlock{&model, layer});
      }
    }
  }

  /// Appends `tokens[s]` to `requests[s]`, each cut as `cuts[s]` says, in as many steps as that takes. Returns the
  /// logits and the active set of every layer in the last part of the prompt.
  std::vector<Result> run(const std::vector<Request*>& requests, const std::vector<std::vector<Index>>& tokens,
                          const std::vector<Cut>& cuts) {
    std::vector<Result> results(requests.size());
    for (Result& result : results) result.active.resize(layers.size());
    std::vector<Index> given(requests.size(), 0);
    std::vector<bool> done(requests.size(), false);
    while (std::ranges::find(done, false) != done.end()) {
      std::vector<std::size_t> members;
      std::vector<Entry> entries;
      std::vector<Index> prompt;  // tokens of it so far
      batch.clear();
      for (std::size_t s = 0; s < requests.size(); ++s) {
        if (done[s]) continue;
        const Index rest = std::ssize(tokens[s]) - given[s];
        // Between chunks, in some steps only rows that wait go on.
        const bool pauses = given[s] > 0 && rest > 0 && steps % 3 == 0;
        const Index chunk = pauses ? 0 : std::min(rest, cuts[s].chunk);
        entries.push_back({.sequence = &requests[s]->sequence,
                           .pruner = &requests[s]->pruner,
                           .new_tokens = chunk,
                           .more = chunk < rest,
                           .outputs = cuts[s].outputs,
                           .max_rows = cuts[s].max_rows,
                           .continuations = requests[s]->continuations});
        const auto first = tokens[s].begin() + given[s];
        requests[s]->tokens.insert(requests[s]->tokens.end(), first, first + chunk);
        given[s] += chunk;
        prompt.push_back(given[s]);
        batch.push_back(&requests[s]->cache);
        members.push_back(s);
      }
      step_once(requests, members, entries, prompt, results);
      for (const std::size_t s : members)
        done[s] = !requests[s]->sequence.unfinished() && given[s] == std::ssize(tokens[s]);
    }
    return results;
  }

  void step_once(const std::vector<Request*>& requests, const std::vector<std::size_t>& members,
                 const std::vector<Entry>& entries, const std::vector<Index>& prompt, std::vector<Result>& results) {
    const RowsView<T> hidden = step.begin(context, entries);
    std::vector<T> embeddings(static_cast<std::size_t>(hidden.rows * hidden.width));
    T* row = embeddings.data();
    for (std::size_t m = 0; m < members.size(); ++m) {
      for (const Position position : step.plan().sequence(static_cast<Index>(m)).positions) {
        model.embed(requests[members[m]]->tokens[static_cast<std::size_t>(position)], row);
        row += hidden.width;
      }
    }
    Memory::write(context, embeddings, hidden.data);
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      const LayerPlan plan = step.plan();
      for (std::size_t m = 0; m < members.size(); ++m) {
        const SequencePlan part = plan.sequence(static_cast<Index>(m));
        if (!part.keys.empty()) results[members[m]].active[layer].assign(part.keys.begin(), part.keys.end());
        const auto own = std::ranges::lower_bound(part.positions, entries[m].sequence->length() - prompt[m]);
        CHECK(part.positions.end() - own <= entries[m].max_rows);
      }
      if (layer % 2 == steps % 2) {
        layers[layer].forward(context, step);
      } else {  // as an engine does that drives `advance` itself
        step.guard([&] {
          if (plan.rows() > 0) layers[layer].attention().attend(context, plan, step.hidden());
          step.advance(context, layers[layer].attention());
          if (step.hidden().rows == 0) return;
          lazyllm::detail::run_feed_forward(layers[layer].feed_forward(), context, step.row_indptr(), step.hidden());
        });
      }
    }
    ++steps;
    const StepOutput<T> output = step.end();
    CHECK(output.failures.empty());
    for (std::size_t m = 0; m < members.size(); ++m) {
      const RowsView<T> last = output.of(static_cast<Index>(m));
      CHECK(last.rows == (requests[members[m]]->sequence.unfinished() ? 0 : entries[m].outputs));
      const std::vector<T> values = Memory::read(context, last);
      for (Index row = 0; row < last.rows; ++row) {
        const Vector logits = model.logits(values.data() + row * last.width);
        auto& all = results[members[m]].logits;
        all.insert(all.end(), logits.begin(), logits.end());
      }
    }
    revived += step.stats().revived();
  }

  const TinyModel& model;
  Context context;
  TinyBatch<T> batch;
  std::vector<LazyDecoderLayer<AttentionBlock, FeedForwardBlock>> layers;
  Step<Sequence, Pruner> step;
  Index revived = 0;
  std::size_t steps = 0;
};

/// The invariant of docs/design.md, looked up in the engine's own counts and the naive reference.
template <class Scorer, class Storage>
void check_invariant(Request<Scorer, Storage>& request) {
  const Index layers = request.sequence.layers();
  CHECK_FALSE(request.sequence.unfinished());
  Index parked = 0;
  bool holds = true;
  for (Position p = 0; p < request.sequence.length(); ++p) {
    const Index depth = request.sequence.depths()[static_cast<std::size_t>(p)];
    holds &= depth == request.naive.depth(p);
    holds &= request.sequence.aux().holds(p) == (depth < layers);
    parked += depth < layers;
    for (Index layer = 0; layer < layers; ++layer) {
      holds &= request.cache.computed[static_cast<std::size_t>(layer)][static_cast<std::size_t>(p)] == (layer < depth);
    }
  }
  CHECK(holds);
  CHECK(request.sequence.aux().parked_rows() == parked);
  CHECK(request.naive.parked() == parked);
}

/// Drops a range of tokens, as an engine that shifts its context. It would rotate the keys behind to their new
/// positions; here neither world does.
template <class Scorer, class Storage>
void erase(Request<Scorer, Storage>& request, Random& random) {
  const Index first = random.between(0, request.sequence.length());
  const Index last = random.between(first, request.sequence.length());
  request.sequence.erase(first, last);
  request.cache.erase(first, last);
  request.naive.erase(first, last);
  request.tokens.erase(request.tokens.begin() + first, request.tokens.begin() + last);
}

/// Appends tokens with K/V of any values, as an engine that has computed them elsewhere.
template <class Scorer, class Storage>
void append_computed(Request<Scorer, Storage>& request, Random& random) {
  using T = typename Storage::value_type;
  const Index tokens = random.between(0, 10);
  const auto numbers = [&](T* row) {
    for (Index i = 0; i < request.cache.hidden_size; ++i)
      row[i] = static_cast<T>(static_cast<float>(random.fraction()));
    return std::vector<T>(row, row + request.cache.hidden_size);
  };
  request.naive.append_computed(tokens, [&](Index layer, Position p) {
    request.cache.computed[static_cast<std::size_t>(layer)][static_cast<std::size_t>(p)] = 1;
    auto key = numbers(request.cache.key(layer, p));
    return std::pair(std::move(key), numbers(request.cache.value(layer, p)));
  });
  request.sequence.append_computed(tokens);
  request.tokens.resize(request.tokens.size() + static_cast<std::size_t>(tokens), 0);
}

/// Random batches of random requests with random schedules, grown by random steps and by tokens that were computed
/// elsewhere, truncated, shifted and forked at random:
/// every step must agree with the naive reference bit for bit.
template <class Memory, class Storage, class AttentionBlock, class FeedForwardBlock = NoFeedForward,
          class Scorer = Memory>
void random_runs(unsigned seeds) {
  using T = typename Storage::value_type;
  Index pruned = 0;
  Index revived = 0;
  const unsigned count_of_runs = std::max(3U, runs(seeds));  // of fewer, none may prune
  for (unsigned seed = 0; seed < count_of_runs; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Index kv_heads = Index{1} << random.between(0, 2);
    const TinyModel model({.layers = random.between(1, 6), .heads = 4, .kv_heads = kv_heads, .head_dim = 4}, seed);
    const Index layers = model.shape().layers;
    constexpr Index capacity = 60;
    Engine<Memory, Storage, AttentionBlock, FeedForwardBlock, Scorer> engine(model,
                                                                             static_cast<int>(random.between(1, 2)));
    auto empty = Storage(model.shape().hidden_size());
    std::list<Request<Scorer, Storage>> requests;
    const Index count = random.between(1, 3);
    for (Index i = 0; i < count; ++i) {
      AnyPolicy policy = random.policy(layers);
      const float adapter = engine.has_adapters ? 0.25F * static_cast<float>(i) : 0;
      requests.push_back({lazyllm::Sequence(layers, AuxCache(empty.make_empty())),
                          TinyCache<T>(model.shape(), capacity), NaiveLazy<T, Scorer>(model, adapter),
                          Pruner(policy, random.score()), policy});
      requests.back().cache.adapter = adapter;
    }
    for (Index turn = random.between(2, 8); turn > 0; --turn) {
      std::vector<Request<Scorer, Storage>*> members;
      std::vector<std::vector<Index>> tokens;
      std::vector<Cut> cuts;
      for (Request<Scorer, Storage>& request : requests) {
        if (random.chance(0.2) || request.sequence.length() + 20 > capacity) continue;
        members.push_back(&request);
        tokens.push_back(random.tokens(random.chance(0.5) ? 1 : random.between(1, 20), model.shape().vocab));
        request.continuations.clear();
        while (request.sequence.length() > 0 && random.chance(0.6)) {
          request.continuations.push_back(static_cast<Position>(random.between(0, request.sequence.length() - 1)));
        }
        Cut& cut = cuts.emplace_back();
        if (random.chance(0.3)) cut.chunk = random.between(1, 8);
        if (random.chance(0.3)) cut.outputs = random.between(0, std::ssize(tokens.back()));
        if (random.chance(0.3)) {
          cut.max_rows = std::max(cut.outputs, random.between(request.pruner.score().last_queries, 12));
        }
      }
      if (members.empty()) continue;
      const auto results = engine.run(members, tokens, cuts);
      for (std::size_t s = 0; s < members.size(); ++s) {
        const auto expected = members[s]->naive.step(tokens[s], members[s]->policy, members[s]->pruner.score(),
                                                     members[s]->continuations, cuts[s].outputs);
        CHECK(results[s].active == expected.active);
        CHECK(results[s].logits == expected.logits);
        pruned += std::ssize(expected.active.front()) - std::ssize(expected.active.back());
        check_invariant(*members[s]);
      }
      for (Request<Scorer, Storage>& request : requests) {
        if (random.chance(0.1)) {
          const Index length = random.between(0, request.sequence.length());
          request.sequence.truncate(length);
          request.cache.truncate(length);
          request.naive.truncate(length);
          request.tokens.resize(static_cast<std::size_t>(length));
          check_invariant(request);
        }
      }
      for (Request<Scorer, Storage>& request : requests) {
        if (random.chance(0.1)) erase(request, random);
        if (random.chance(0.1) && request.sequence.length() + 10 <= capacity) append_computed(request, random);
        check_invariant(request);
      }
      if (random.chance(0.2) && requests.size() < 4) {
        Request<Scorer, Storage>& parent = requests.front();
        requests.push_back({parent.sequence.fork(engine.context), parent.cache, parent.naive, parent.pruner,
                            parent.policy, parent.tokens});
        check_invariant(requests.back());
      }
    }
    revived += engine.revived;
  }
  CHECK(pruned > 0);
  CHECK(revived > 0);
}

}  // namespace lazyllm::test
