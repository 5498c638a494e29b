#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "examples/llama/base.hpp"
#include "examples/llama/model/any_model.hpp"
#include "examples/llama/model/sampler.hpp"
#include "examples/llama/program/timing.hpp"
#include "examples/llama/token_ids.hpp"

namespace llama {

/// Two turns of a chat. The user sends the second prompt when the first is answered.
struct Conversation {
  std::vector<TokenId> prompts[2];
};

/// What the users of a server see, in milliseconds.
struct Served {
  /// For each turn: from the prompt's arrival to the first token of its answer.
  std::array<std::vector<double>, 2> first_tokens;
  std::vector<double> between_tokens;  ///< of the answers
  double whole = 0;                    ///< until all are answered
};

/// A server with continuous batching. A conversation takes a sequence of the decoder when it comes, or when the first
/// one is free, and leaves it after its second answer. A step has one token of each running answer and at most one
/// prompt, the one that has waited longest. Time is that of the steps: the clock goes on at once where nothing is to
/// do.
class Server {
 public:
  /// `decoder` has `slots` sequences. Each answer has `answer_tokens` tokens.
  Server(AnyDecoder& decoder, Index slots, Index answer_tokens)
      : decoder_(decoder), slots_(static_cast<std::size_t>(slots)), answer_tokens_(answer_tokens) {}

  /// Serves the conversations; number i comes at `arrivals[i]`, in ascending order.
  Served run(std::span<const Conversation> conversations, std::span<const double> arrivals) {
    clock_ = 0;
    served_ = {};
    std::size_t begun = 0;
    for (std::size_t ended = 0; ended < conversations.size();) {
      for (std::size_t s = 0; s < slots_.size() && begun < conversations.size(); ++s) {
        if (slots_[s]) continue;
        if (arrivals[begun] > clock_) {
          if (begun > ended) break;
          clock_ = arrivals[begun];  // nobody else is there
        }
        slots_[s] = Running{
            .conversation = &conversations[begun], .since = arrivals[begun], .prompt = conversations[begun].prompts[0]};
        decoder_.clear(static_cast<Index>(s));
        ++begun;
      }
      ended += step();
    }
    served_.whole = clock_;
    return std::move(served_);
  }

 private:
  /// A conversation that has a sequence.
  struct Running {
    const Conversation* conversation;
    double since;                 // when the turn's prompt came
    std::vector<TokenId> prompt;  // of the turn: what has not run yet
    std::size_t turn = 0;
    Index answered = 0;      // tokens of the turn's answer
    TokenId token = 0;       // the last one
    double answered_at = 0;  // when that came
  };

  /// Returns how many conversations have ended.
  std::size_t step() {
    const std::optional<Running>* prompt = nullptr;
    for (const auto& slot : slots_) {
      if (slot && slot->answered == 0 && (prompt == nullptr || slot->since < (*prompt)->since)) prompt = &slot;
    }
    std::vector<Tokens> tokens(slots_.size());
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      const auto& slot = slots_[s];
      if (&slot == prompt) tokens[s] = slot->prompt;
      if (slot && slot->answered > 0) tokens[s] = Tokens(&slot->token, 1);
    }
    const Clock::time_point start = Clock::now();
    const RowsView<const float> logits = decoder_.step_all(tokens);
    clock_ += milliseconds_since(start);
    std::size_t ended = 0;
    Index row = 0;
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      if (tokens[s].empty()) continue;
      ended += answer(slots_[s], greedy_.draw({logits.row(row++), static_cast<std::size_t>(logits.width)}));
    }
    return ended;
  }

  /// The next token of an answer has come. Returns how many conversations end with it.
  std::size_t answer(std::optional<Running>& slot, TokenId token) {
    if (slot->answered == 0) {
      served_.first_tokens[slot->turn].push_back(clock_ - slot->since);
    } else {
      served_.between_tokens.push_back(clock_ - slot->answered_at);
    }
    slot->token = token;
    slot->answered_at = clock_;
    if (++slot->answered < answer_tokens_) return 0;
    if (slot->turn == 0) {
      std::vector<TokenId> prompt(1, token);  // nothing has run it yet
      const std::vector<TokenId>& second = slot->conversation->prompts[1];
      prompt.insert(prompt.end(), second.begin(), second.end());
      slot = Running{.conversation = slot->conversation, .since = clock_, .prompt = std::move(prompt), .turn = 1};
      return 0;
    }
    slot.reset();
    return 1;
  }

  AnyDecoder& decoder_;
  std::vector<std::optional<Running>> slots_;
  Index answer_tokens_;
  Sampler greedy_{Sampling{}};
  double clock_ = 0;
  Served served_;
};

}  // namespace llama
