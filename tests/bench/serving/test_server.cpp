#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "bench/examples/llama/model/server.hpp"
#include "tests/examples/llama/idle_decoder.hpp"

namespace llama {
namespace {

/// Answers each token with the next one, in a millisecond, and writes down what each step runs: a letter for each
/// sequence, large where it runs more than one token, a point where it does not run.
class NotingDecoder : public test::IdleDecoder {
 public:
  explicit NotingDecoder(std::size_t sequences) : lengths_(sequences) {}

  std::vector<std::string> steps;
  std::vector<Index> cleared;  ///< the length of each sequence that was forgotten

  RowsView<const float> step_all(std::span<const Tokens> tokens) override {
    REQUIRE(tokens.size() == lengths_.size());
    logits_.clear();
    steps.emplace_back();
    for (std::size_t s = 0; s < tokens.size(); ++s) {
      lengths_[s] += std::ssize(tokens[s]);
      steps.back() +=
          tokens[s].empty() ? '.' : static_cast<char>((tokens[s].size() > 1 ? 'A' : 'a') + static_cast<int>(s));
      if (tokens[s].empty()) continue;
      std::vector<float> row(vocab);
      row[static_cast<std::size_t>(tokens[s].back()) + 1] = 1;
      logits_.insert(logits_.end(), row.begin(), row.end());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return {logits_.data(), std::ssize(logits_) / vocab, vocab};
  }
  using test::IdleDecoder::clear;
  void clear(Index s) override {
    cleared.push_back(lengths_[static_cast<std::size_t>(s)]);
    lengths_[static_cast<std::size_t>(s)] = 0;
  }

 private:
  static constexpr Index vocab = 64;

  std::vector<Index> lengths_;
  std::vector<float> logits_;
};

const Conversation conversation{{{1, 2, 3}, {20, 21}}};

}  // namespace

TEST_CASE(
    "conversations that come at once share the steps, with one prompt in each, and the next takes a free sequence") {
  NotingDecoder decoder(2);
  const std::vector<Conversation> three(3, conversation);
  const Served served = Server(decoder, 2, 3).run(three, std::vector<double>{0, 0, 0});
  CHECK(decoder.steps ==
        std::vector<std::string>{"A.", "aB", "ab", "Ab", "aB", "ab", "Ab", "a.", "a.", "A.", "a.", "a."});
  for (const auto& first : served.first_tokens) CHECK(first.size() == 3);
  CHECK(served.between_tokens.size() == 3 * 2 * 2);
  // 3 of the first prompt, 3 of the answer, 2 of the second prompt, and of its answer all but the last token.
  CHECK(decoder.cleared == std::vector<Index>{0, 0, 10});
  // The third waits until the first has ended.
  CHECK(*std::ranges::max_element(served.first_tokens[0]) >= 7);
  CHECK(served.whole >= 12);
}

TEST_CASE("the clock goes on to the next conversation where none is there, and times count from when it comes") {
  NotingDecoder decoder(2);
  const std::vector<Conversation> two(2, conversation);
  const Served served = Server(decoder, 2, 2).run(two, std::vector<double>{5e6, 9e6});
  CHECK(decoder.steps == std::vector<std::string>{"A.", "a.", "A.", "a.", "A.", "a.", "A.", "a."});
  CHECK(served.whole > 9e6);
  for (const auto& first : served.first_tokens) {
    CHECK(first.size() == 2);
    for (const double time : first) CHECK(time < 1e6);
  }
}

}  // namespace llama
