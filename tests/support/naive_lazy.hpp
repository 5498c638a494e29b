#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "lazyllm/policy/selection.hpp"
#include "lazyllm/score/attention_score.hpp"
#include "support/tiny_model.hpp"

namespace lazyllm::test {

/// The slow, obvious LazyLLM of one sequence that the library is compared with: per layer a dictionary of K/V and a
/// dictionary of hidden states, no depth, no plan, one token at a time. `Memory` is that of the backend whose scoring
/// is used: other roundings would make other sets where scores are nearly equal.
template <class T, class Memory>
class NaiveLazy {
 public:
  using Policy = std::function<Selection(const PrunePoint&)>;

  /// `adapter` is that of the request's feed-forwards.
  explicit NaiveLazy(const TinyModel& model, float adapter = 0)
      : model_(&model), adapter_(adapter), kv_(size(model.shape().layers)), aux_(kv_.size()) {}

  struct Result {
    std::vector<std::vector<Position>> active;  // by layer
    Vector logits;                              // of the outputs, one after the other
  };

  Result step(const std::vector<Index>& new_tokens, const Policy& policy, const AttentionScore& score = {},
              const std::vector<Position>& continuations = {}, Index outputs = 1) {
    Result result;
    const TinyShape& shape = model_->shape();
    const Index before = tokens_;
    tokens_ += std::ssize(new_tokens);
    decoded_.resize(size(tokens_), std::ssize(new_tokens) <= std::max<Index>(outputs, 1));
    std::map<Position, std::vector<T>> hidden;
    for (Index i = before; i < tokens_; ++i) {
      auto& row = hidden[static_cast<Position>(i)];
      row.resize(size(shape.hidden_size()));
      model_->embed(new_tokens[size(i - before)], row.data());
    }
    std::vector<Position> active(size(tokens_));
    std::iota(active.begin(), active.end(), 0);
    std::map<Position, float> sums;
    for (Index layer = 0; layer < shape.layers; ++layer) {
      result.active.push_back(active);
      auto& kv = kv_[size(layer)];
      std::map<Position, Vector> queries;
      for (const Position p : active) {
        if (kv.contains(p)) continue;
        if (!hidden.contains(p)) {  // pruned before this layer in an earlier step: revive
          hidden[p] = aux_[size(layer)].at(p);
          aux_[size(layer)].erase(p);
        }
        const TinyModel::Qkv qkv = model_->project(layer, p, hidden[p].data());
        kv[p] = {rounded<T>(qkv.key), rounded<T>(qkv.value)};
        queries[p] = qkv.query;
      }
      std::map<Position, std::vector<T>> next;
      for (const auto& [p, query] : queries) {
        std::vector<const T*> keys, values;
        for (const Position k : active) {
          if (k > p) continue;
          keys.push_back(kv[k].key.data());
          values.push_back(kv[k].value.data());
        }
        next[p] = hidden[p];
        model_->attend(layer, query, keys, values, next[p].data());
        model_->feed_forward(layer, next[p].data(), adapter_);
      }
      hidden = std::move(next);
      if (layer + 1 == shape.layers) break;

      const Vector scores = scores_of(kv, queries, active, before, score, sums);
      Selection selection = policy({.layers_run = layer + 1,
                                    .layers = shape.layers,
                                    .active_tokens = std::ssize(active),
                                    .tokens = tokens_,
                                    .new_tokens = std::ssize(new_tokens),
                                    .steps = steps_,
                                    .decoded_tokens = decoded_tokens(before),
                                    .outputs = outputs,
                                    .continuations = continuations});
      selection.protect_last = std::max(selection.protect_last, outputs);
      active = selected(selection, active, scores, aux_[size(layer + 1)]);
      for (auto it = hidden.begin(); it != hidden.end();) {
        if (std::ranges::binary_search(active, it->first)) {
          ++it;
        } else {
          aux_[size(layer + 1)][it->first] = it->second;
          it = hidden.erase(it);
        }
      }
    }
    ++steps_;
    for (Index p = tokens_ - outputs; p < tokens_; ++p) {
      const Vector logits = model_->logits(hidden.at(static_cast<Position>(p)).data());
      result.logits.insert(result.logits.end(), logits.begin(), logits.end());
    }
    return result;
  }

  void truncate(Index tokens) { erase(tokens, tokens_); }

  /// Drops the tokens [first, last); those behind move to `first`.
  void erase(Index first, Index last) {
    const Index prompt_end = tokens_ - decoded_tokens(tokens_);
    // Where the end of the last prompt is cut off, the prompt ends at `first`.
    if (0 < first && first < prompt_end && prompt_end <= last) decoded_[size(first - 1)] = false;
    decoded_.erase(decoded_.begin() + first, decoded_.begin() + last);
    tokens_ -= last - first;
    if (tokens_ == 0) steps_ = 0;
    const auto move_up = [&](auto& rows) {
      std::remove_reference_t<decltype(rows)> moved;
      for (auto& [p, row] : rows) {
        if (p < first) moved[p] = std::move(row);
        if (p >= last) moved[p - static_cast<Position>(last - first)] = std::move(row);
      }
      rows = std::move(moved);
    };
    std::ranges::for_each(kv_, move_up);
    std::ranges::for_each(aux_, move_up);
  }

  /// Appends tokens that another engine has computed in all layers: `key_value(layer, p)` are their K/V.
  void append_computed(Index tokens,
                       const std::function<std::pair<std::vector<T>, std::vector<T>>(Index, Position)>& key_value) {
    for (Index p = tokens_; p < tokens_ + tokens; ++p) {
      for (std::size_t layer = 0; layer < kv_.size(); ++layer) {
        const auto position = static_cast<Position>(p);
        const auto [key, value] = key_value(static_cast<Index>(layer), position);
        kv_[layer][position] = {key, value};
      }
    }
    tokens_ += tokens;
    decoded_.resize(size(tokens_), false);
  }

  Index tokens() const { return tokens_; }

  /// Rows in all the dictionaries of hidden states.
  Index parked() const {
    Index rows = 0;
    for (const auto& layer : aux_) rows += std::ssize(layer);
    return rows;
  }

  Index depth(Position p) const {
    return std::ranges::count_if(kv_, [p](const auto& layer) { return layer.contains(p); });
  }

 private:
  struct KeyValue {
    std::vector<T> key, value;
  };

  template <class Number>
  static std::size_t size(Number number) {
    return static_cast<std::size_t>(number);
  }

  /// How many tokens right before `end` came in decode steps.
  Index decoded_tokens(Index end) const {
    Index count = 0;
    while (count < end && decoded_[size(end - count - 1)]) ++count;
    return count;
  }

  /// The probabilities of one query come from the library, whose scoring is tested elsewhere. What is made of them is
  /// written out here again.
  Vector scores_of(const std::map<Position, KeyValue>& kv, const std::map<Position, Vector>& queries,
                   const std::vector<Position>& active, Index before, const AttentionScore& score,
                   std::map<Position, float>& sums) const {
    const TinyShape& shape = model_->shape();
    std::vector<T> rows;
    std::vector<Position> limits;
    for (const auto& [p, query] : queries) {
      if (p < before || p < tokens_ - score.last_queries) continue;
      for (const float q : query) rows.push_back(static_cast<T>(q));
      limits.push_back(static_cast<Position>(std::ranges::upper_bound(active, p) - active.begin()));
    }
    std::vector<T> keys;  // the active ones, one after the other
    std::vector<Position> places(active.size());
    std::iota(places.begin(), places.end(), 0);
    for (const Position p : active) keys.insert(keys.end(), kv.at(p).key.begin(), kv.at(p).key.end());
    auto context = Memory::make_context();
    auto query_memory = Memory::upload(context, rows);
    auto key_memory = Memory::upload(context, keys);
    auto score_memory = Memory::upload(context, Vector(active.size()));
    score_one(context,
              QueryRows<T>{query_memory.span().data(), shape.hidden_size(), shape.head_dim, shape.heads, shape.head_dim,
                           1 / std::sqrt(static_cast<float>(shape.head_dim))},
              0, limits, ContiguousKeys<T>{key_memory.span().data(), shape.kv_width(), shape.head_dim, shape.kv_heads},
              places, score.over_rows, score_memory.span(), score.over_heads);
    Vector scores = score_memory.download();
    if (score.over_layers) {
      for (std::size_t i = 0; i < active.size(); ++i) scores[i] = sums[active[i]] += scores[i];
    }
    Vector pooled(scores);
    for (Index i = 0; i < std::ssize(scores); ++i) {
      for (Index j = 0; j < std::ssize(scores); ++j) {
        if (std::abs(i - j) <= score.pooling / 2) pooled[size(i)] = std::max(pooled[size(i)], scores[size(j)]);
      }
    }
    return pooled;
  }

  bool protects(const Selection& selection, Position p) const {
    return p < selection.protect_first || p >= tokens_ - selection.protect_last ||
           (size(p) < selection.protect_mask.size() && selection.protect_mask[size(p)] != 0) ||
           std::ranges::find(selection.protect, p) != selection.protect.end();
  }

  std::vector<Position> selected(Selection selection, const std::vector<Position>& active, Vector scores,
                                 const std::map<Position, std::vector<T>>& parked) const {
    using enum Selection::Kind;
    if (selection.kind == top_p && selection.p == 1) {  // all tokens, those without a score, too
      selection.kind = top_k;
      selection.k = std::ssize(active);
    }
    if (selection.kind == all) return active;
    std::vector<Position> result;
    if (selection.kind == not_pruned_before) {
      for (const Position p : active) {
        const auto& listed = selection.protect;
        if (!parked.contains(p) || std::ranges::find(listed, p) != listed.end()) result.push_back(p);
      }
      return result;
    }
    std::vector<std::size_t> order(active.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
      const bool first = protects(selection, active[a]);
      const bool second = protects(selection, active[b]);
      return first != second ? first : !first && scores[a] > scores[b];
    });
    const double total = std::accumulate(scores.begin(), scores.end(), 0.0);
    double held = 0;
    Index chosen = 0;
    Index revived = 0;
    for (const std::size_t i : order) {
      const bool enough = selection.kind == top_k ? chosen >= selection.k : held >= (selection.p - 1e-9) * total;
      if (enough && !protects(selection, active[i])) break;
      ++chosen;
      held += scores[i];
      // Best first: only so many of those that are parked here come back.
      const bool comes_back = parked.contains(active[i]);
      if (comes_back && revived >= selection.max_revived && !protects(selection, active[i])) continue;
      revived += comes_back;
      result.push_back(active[i]);
    }
    std::ranges::sort(result);
    return result;
  }

  const TinyModel* model_;
  float adapter_;
  std::vector<std::map<Position, KeyValue>> kv_;
  std::vector<std::map<Position, std::vector<T>>> aux_;  // by layer: the inputs of that layer
  Index tokens_ = 0;
  Index steps_ = 0;
  std::vector<bool> decoded_;  // by position: came in a decode step
};

}  // namespace lazyllm::test
