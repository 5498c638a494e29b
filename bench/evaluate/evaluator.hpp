#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bench/evaluate/answerer.hpp"
#include "bench/evaluate/filters.hpp"
#include "bench/evaluate/item.hpp"
#include "bench/evaluate/method.hpp"
#include "bench/evaluate/metrics.hpp"
#include "bench/evaluate/result.hpp"
#include "examples/llama/model/operations.hpp"
#include "examples/llama/program/counted.hpp"
#include "examples/llama/program/cut_middle.hpp"
#include "examples/llama/program/interleaved.hpp"
#include "examples/llama/program/model_options.hpp"
#include "examples/llama/tokenizer/chat_template.hpp"

namespace llama {

/// Asks a model one item after the other with one method, and scores and measures the answers.
class Evaluator {
 public:
  /// `options` are resolved ones; prompts are cut in the middle so that prompt and answer fit `context` tokens. Models
  /// and tokenizer are the caller's; `compressor` may be `model`. With a `chat` template prompts are put in it, but for
  /// those of few-shot and code sets, as in LongBench.
  Evaluator(const MethodOptions& options, const AnyModel& model, const AnyModel& compressor, const Tokenizer& tokenizer,
            Index context, const ChatTemplate* chat = nullptr)
      : options_(options),
        model_(model),
        tokenizer_(tokenizer),
        chat_(chat),
        context_(context),
        answerer_(options, model, compressor, tokenizer),
        stop_(stop_tokens(model.config(), &tokenizer)) {}

  /// `repeats` turns of dense and the method are timed; 0: none.
  /// Throws `std::invalid_argument` if the item cannot be asked or a logit is not finite.
  ItemResult evaluate(const Item& item, Index repeats) {
    const Question question = ask(item);
    ItemResult result;
    result.id = item.id;
    result.dataset = item.dataset;
    result.fingerprint = item.fingerprint;
    result.prompt_tokens = std::ssize(question.tokens);
    result.dense_operations = prefill_operations(model_.config(), result.prompt_tokens);
    // Every item draws tokens of its own; the same ones whenever and after whatever it is run.
    const auto seed = [&](Index run) { return item.fingerprint + options_.seed + static_cast<std::uint64_t>(run); };
    for (Index run = 0; run < options_.runs(); ++run) {
      const Answer answer = answerer_.answer(question, seed(run));
      result.runs.push_back(describe(item, question, answer));
    }
    if (repeats > 0) {
      // The method has run by now; dense, too, shall find its buffers grown and its kernels ready.
      Question prefill = question;
      prefill.max_tokens = 1;
      answerer_.dense(prefill);
    }
    const auto [dense, other] = interleaved(
        repeats, [&] { return answerer_.dense(question); },
        [&] { return options_.method == Method::dense ? Answer() : answerer_.answer(question, seed(0)); });
    const std::vector<Answer>& answers = options_.method == Method::dense ? dense : other;
    for (std::size_t i = 0; i < dense.size(); ++i) {
      const std::size_t common = std::min(dense[i].step_ms.size(), answers[i].step_ms.size());
      result.timing.dense_ttft_ms.push_back(dense[i].ms(1));
      result.timing.ttft_ms.push_back(answers[i].ms(1));
      result.timing.dense_total_ms.push_back(dense[i].ms(common));
      result.timing.total_ms.push_back(answers[i].ms(common));
    }
    return result;
  }

 private:
  Question ask(const Item& item) const {
    const Index room = context_ - item.max_tokens;
    if (room < 2) {
      fail("an answer of ", counted(item.max_tokens, "token"), " leaves no room for a prompt in a context of ",
           context_);
    }
    const bool chats = chat_ != nullptr && asked_in_chat(item.dataset);
    auto tokens = chats ? chat_->encode(tokenizer_, item.prompt) : tokenizer_.encode(item.prompt, true);
    if (tokens.empty()) fail("the prompt has 0 tokens, at least 1 is needed");
    Question question{cut_middle(std::move(tokens), room), item.max_tokens, stop_, false};
    if (item.dataset == "samsum") {
      // As LongBench has it: there the answer is one line, and not an empty one.
      const std::vector<TokenId> line_feed = tokenizer_.encode("\n", false);
      if (line_feed.empty()) fail("the tokenizer has no token for the line feed that ends an answer of samsum");
      question.stop.push_back(line_feed.back());
      question.stop_not_first = true;
    }
    return question;
  }

  RunResult describe(const Item& item, const Question& question, const Answer& answer) const {
    const auto tokens = std::ssize(answer.step_ms);
    // The last token generated has not been run.
    const auto dense_bytes = static_cast<double>(model_.kv_bytes(std::ssize(question.tokens) + tokens - 1));
    return {answer.text,
            score(item.dataset, answer.text, item.answers, item.all_classes),
            tokens,
            answer.ms(1),
            answer.ms(answer.step_ms.size()),
            answer.prefill_operations,
            answer.computed_percent,
            100 * static_cast<double>(answer.reserved_bytes) / dense_bytes,
            100 * static_cast<double>(answer.filled_bytes) / dense_bytes};
  }

  MethodOptions options_;
  const AnyModel& model_;
  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_;
  Index context_;
  Answerer answerer_;
  std::vector<TokenId> stop_;
};

}  // namespace llama
