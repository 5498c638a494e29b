#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/evaluate/evaluator.hpp"
#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/checkpoint.hpp"
#include "tests/bench/evaluate/toy_tokenizer.hpp"
#include "tests/examples/llama/chatml.hpp"
#include "tests/examples/llama/checkpoint/support.hpp"
#include "tests/support/source_folder.hpp"

using namespace llama;
using test::ToyTokenizer;
using testing::check_rejected;

namespace {

constexpr Index layers = 4;
constexpr Index context = 128;
constexpr Index kv_bytes_per_token = 2 * layers * 32 * sizeof(float);

const AnyModel& model() {
  static const std::unique_ptr<AnyModel> model = [] {
    const Checkpoint checkpoint(lazyllm::test::source_folder() /
                                "tests/reference/fixtures/lazyllm/models/mha_4_layers");
    return open_model(checkpoint.config(), weights_of(checkpoint), {});
  }();
  return *model;
}

MethodOptions method(Method kind, const std::string& schedule = "paper", double keep = 0.5) {
  MethodOptions options;
  options.method = kind;
  options.pruning.schedule = schedule;
  options.keep = keep;
  return resolve(options, layers);
}

Item item(Index prompt_bytes, Index max_tokens) {
  Item item;
  item.id = "tiny_passkey/1";
  item.place = "file:1";
  item.dataset = "tiny_passkey";
  for (Index i = 0; i < prompt_bytes; ++i) item.prompt += static_cast<char>('!' + i * 37 % 94);
  item.answers = {"w5"};
  item.max_tokens = max_tokens;
  item.fingerprint = 1234567;
  return item;
}

ItemResult evaluate(const MethodOptions& options, const Item& item, Index repeats = 0,
                    const ChatTemplate* chat = nullptr) {
  const ToyTokenizer tokenizer(3);
  return Evaluator(options, model(), model(), tokenizer, context, chat).evaluate(item, repeats);
}

TokenId likeliest(std::span<const float> logits) {
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

/// What dense inference writes after `tokens`.
std::vector<TokenId> greedy(const std::vector<TokenId>& tokens, Index count) {
  const auto decoder = model().dense(std::ssize(tokens) + count);
  std::vector<TokenId> written = {likeliest(decoder->step(tokens))};
  while (std::ssize(written) < count && written.back() > 2) {
    written.push_back(likeliest(decoder->step({&written.back(), 1})));
  }
  return written;
}

std::string text(const std::vector<TokenId>& tokens) {
  std::string text;
  for (const TokenId token : tokens) text += ToyTokenizer(3).decode(no_token, token);
  return text;
}

}  // namespace

TEST_CASE("dense: the decoder's own greedy text, operations and memory") {
  const Item one = item(40, 8);
  const std::vector<TokenId> written = greedy(ToyTokenizer(3).encode(one.prompt, true), 8);
  const ItemResult result = evaluate(method(Method::dense), one);
  CHECK(result.id == one.id);
  CHECK(result.fingerprint == one.fingerprint);
  CHECK(result.prompt_tokens == 41);
  REQUIRE(result.runs.size() == 1);
  const RunResult& run = result.runs[0];
  CHECK(run.prediction == text(written));
  CHECK(run.tokens == std::ssize(written));
  CHECK(run.operations == result.dense_operations);
  CHECK(run.computed_percent == 100);
  CHECK(run.reserved_percent == 100);
  CHECK(run.filled_percent == 100);
  CHECK(run.ttft_ms > 0);
  CHECK(run.total_ms > run.ttft_ms);
  CHECK(result.timing.ttft_ms.empty());
  Item scored = one;
  scored.answers = {"x", text({written[0]})};
  CHECK(evaluate(method(Method::dense), scored).runs[0].score ==
        score("tiny_passkey", run.prediction, scored.answers, {}));
}

TEST_CASE("a chat template goes around the prompt, but not around those of few-shot and code sets") {
  const ToyTokenizer tokenizer(3);
  const ChatTemplate chat(test::chatml, {});
  for (const Index bytes : {8, 300}) {  // the longer one loses its middle, the template's ends stay
    CAPTURE(bytes);
    Item one = item(bytes, 8);
    const std::vector<TokenId> asked = cut_middle(chat.encode(tokenizer, one.prompt), context - 8);
    const ItemResult result = evaluate(method(Method::dense), one, 0, &chat);
    CHECK(result.prompt_tokens == std::ssize(asked));
    CHECK(result.runs.at(0).prediction == text(greedy(asked, 8)));

    one.all_classes = {"w5"};
    for (const char* dataset : {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p", "tiny_few_shot"}) {
      one.dataset = dataset;
      CHECK(evaluate(method(Method::dense), one, 0, &chat).prompt_tokens ==
            std::ssize(cut_middle(tokenizer.encode(one.prompt, true), context - 8)));
    }
  }
}

TEST_CASE("lazy with nothing to prune equals dense in everything but time") {
  const Item one = item(60, 12);
  const RunResult dense = evaluate(method(Method::dense), one).runs.at(0);
  for (const char* schedule : {"dense", "1:1,2:1", "top-p@1:1"}) {
    const RunResult lazy = evaluate(method(Method::lazy, schedule), one).runs.at(0);
    CHECK(lazy.prediction == dense.prediction);
    CHECK(lazy.operations == dense.operations);
    CHECK(lazy.computed_percent == 100);
    CHECK(lazy.reserved_percent == 100);
    CHECK(lazy.filled_percent == 100);
  }
}

TEST_CASE("lazy and static: what they compute and hold is what the schedule says") {
  const Item one = item(59, 1);  // 60 tokens with the one that starts a text; prefill only
  const auto check = [&](const MethodOptions& options) {
    const RunResult run = evaluate(options, one).runs.at(0);
    // 60, 30, 30, 15 of 60 tokens.
    CHECK(run.computed_percent == doctest::Approx(100 * 135.0 / 240));
    const double parked = 45.0 * 32 * sizeof(float);
    CHECK(run.reserved_percent == doctest::Approx(100 + 100 * parked / (60.0 * kv_bytes_per_token)));
    CHECK(run.filled_percent == doctest::Approx(100 * 135.0 / 240 + 100 * parked / (60.0 * kv_bytes_per_token)));
  };
  check(method(Method::lazy, "1:0.5,3:0.5"));
  check(method(Method::static_pruning, "1:0.5,3:0.5"));
  // Only lazy goes back to the tokens that it left out.
  const Item longer = item(59, 40);
  const double lazy = evaluate(method(Method::lazy, "1:0.5,3:0.5"), longer).runs.at(0).computed_percent;
  const double once = evaluate(method(Method::static_pruning, "1:0.5,3:0.5"), longer).runs.at(0).computed_percent;
  CHECK(once == doctest::Approx(100 * 135.0 / 240));
  CHECK(lazy > once);
}

TEST_CASE("random drop: dense inference on what is left, for each seed, whenever it is run") {
  MethodOptions options = method(Method::random_drop);
  options.seeds = 3;
  options.seed = 10;
  const Item one = item(59, 6);
  const ItemResult result = evaluate(options, one);
  REQUIRE(result.runs.size() == 3);
  const std::vector<TokenId> tokens = ToyTokenizer(3).encode(one.prompt, true);
  for (std::uint64_t run = 0; run < 3; ++run) {
    const auto kept = keep_at_random(tokens, {0.5, 1, 1}, one.fingerprint + 10 + run);  // the first token stays
    REQUIRE(kept.size() == 30);
    const RunResult& found = result.runs[run];
    CHECK(found.prediction == text(greedy(kept, 6)));
    CHECK(found.operations == prefill_operations(model().config(), 30));
    CHECK(found.computed_percent == 50);
    const auto generated = static_cast<double>(found.tokens - 1);
    CHECK(found.reserved_percent == doctest::Approx(100 * (30 + generated) / (60 + generated)));
  }
  CHECK(evaluate(options, one).runs[1].prediction == result.runs[1].prediction);
  options.pruning.protect_first = 20;
  options.pruning.protect_last = 15;
  CHECK(evaluate(options, one).runs[0].computed_percent == doctest::Approx(100 * 35.0 / 60));
}

TEST_CASE("compression: dense inference on the least likely tokens, its own work counted") {
  const MethodOptions options = method(Method::compress);
  const Item one = item(59, 6);
  const std::vector<TokenId> tokens = ToyTokenizer(3).encode(one.prompt, true);
  const TokenLogProbabilities likely = model().log_probabilities(tokens);
  const auto kept = keep_informative(tokens, likely.values, {0.5, 1, 1});
  const ItemResult result = evaluate(options, one, 20);
  REQUIRE(result.runs.size() == 1);
  CHECK(result.runs[0].prediction == text(greedy(kept, 6)));
  CHECK(result.runs[0].operations == prefill_operations(model().config(), 30) + likely.operations);
  CHECK(result.runs[0].computed_percent == 50);
  // The shortest times, which the machine's other work does not change.
  CHECK(std::ranges::min(result.timing.ttft_ms) > std::ranges::min(result.timing.dense_ttft_ms));
}

TEST_CASE("timing: each turn has a dense run and one of the method, over as many tokens as both have") {
  const Item one = item(100, 10);
  const ItemResult result = evaluate(method(Method::lazy, "1:0.2"), one, 4);
  for (const auto* list :
       {&result.timing.dense_ttft_ms, &result.timing.ttft_ms, &result.timing.dense_total_ms, &result.timing.total_ms}) {
    REQUIRE(list->size() == 4);
    CHECK(std::ranges::all_of(*list, [](double ms) { return ms > 0; }));
  }
  const ItemResult dense = evaluate(method(Method::dense), one, 2);
  CHECK(dense.timing.ttft_ms == dense.timing.dense_ttft_ms);
}

TEST_CASE("prompts lose their middle so that prompt and answer fit the context") {
  const ToyTokenizer tokenizer(3);
  const Item one = item(300, 28);
  Evaluator evaluator(method(Method::dense), model(), model(), tokenizer, 90);
  const ItemResult result = evaluator.evaluate(one, 0);
  CHECK(result.prompt_tokens == 62);
  CHECK(result.runs[0].prediction == text(greedy(cut_middle(tokenizer.encode(one.prompt, true), 62), 28)));
  const Item all = item(300, 89);
  check_rejected<std::invalid_argument>([&] { evaluator.evaluate(all, 0); }, {"89 tokens", "context of 90"});
}

TEST_CASE("texts of which a tokenizer makes no token are refused") {
  class Stripping final : public Tokenizer {
   public:
    std::vector<TokenId> encode(std::string_view text, bool) const override {
      return text.find_first_not_of(" \n") == std::string_view::npos ? std::vector<TokenId>() : std::vector<TokenId>{5};
    }

   private:
    std::string token_bytes(TokenId, TokenId) const override { return "w"; }
  };
  const Stripping tokenizer;
  Evaluator evaluator(method(Method::dense), model(), model(), tokenizer, context);
  Item one = item(0, 4);
  one.prompt = "  ";
  check_rejected<std::invalid_argument>([&] { evaluator.evaluate(one, 0); }, {"0 tokens", "at least 1"});
  one.prompt = "a dialogue";
  one.dataset = "samsum";
  check_rejected<std::invalid_argument>([&] { evaluator.evaluate(one, 0); }, {"line feed", "samsum"});
}

TEST_CASE("an answer ends at a stop token; that of samsum at its first line, which is not empty") {
  Item one = item(40, 8);
  const std::vector<TokenId> tokens = ToyTokenizer(3).encode(one.prompt, true);
  const std::vector<TokenId> written = greedy(tokens, 8);
  REQUIRE(written.size() == 8);
  const std::size_t at = 4;
  REQUIRE(std::ranges::find(written, written[at]) == written.begin() + at);
  const auto evaluate_with = [&](TokenId line_feed) {
    const ToyTokenizer tokenizer(line_feed);
    return Evaluator(method(Method::dense), model(), model(), tokenizer, context).evaluate(one, 0).runs.at(0);
  };
  CHECK(evaluate_with(written[at]).tokens == 8);  // elsewhere a line feed is nothing special
  one.dataset = "samsum";
  const RunResult line = evaluate_with(written[at]);
  CHECK(line.tokens == at + 1);
  CHECK(line.prediction == text({written.begin(), written.begin() + at}));
  const RunResult forced = evaluate_with(written[0]);
  CHECK(forced.tokens > 1);
  CHECK(forced.prediction != "");
  CHECK(!forced.prediction.starts_with(text({written[0]}) + " "));
}
