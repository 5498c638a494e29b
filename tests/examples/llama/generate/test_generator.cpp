#include <doctest/doctest.h>

#include <array>
#include <string>
#include <vector>

#include "examples/llama/generate/generator.hpp"
#include "tests/examples/llama/idle_decoder.hpp"

namespace llama {
namespace {

/// Counts: the likeliest token of the first step after `clear` is `first`. Each step writes the name to the log.
class CountingDecoder : public test::IdleDecoder {
 public:
  CountingDecoder(char name, std::string& log, std::size_t first = 0) : name_(name), log_(log), first_(first) {}

  std::span<const float> step(Tokens tokens) override {
    log_ += name_;
    length_ += std::ssize(tokens);
    logits_.fill(0);
    logits_[next_++] = 1;
    return logits_;
  }
  using test::IdleDecoder::clear;
  void clear() override { next_ = first_, length_ = 0; }
  Index length(Index) const override { return length_; }

 private:
  char name_;
  std::string& log_;
  std::size_t first_, next_ = 0;
  std::array<float, 16> logits_{};
  Index length_ = 0;
};

}  // namespace

TEST_CASE("steps of two generations take turns, first and second in turn too, until both have ended") {
  std::string log;
  CountingDecoder one('a', log), other('b', log);
  Generator generator({1, 2, 3}, 4, {}, nullptr, {}, {});
  for (int repeat = 0; repeat < 2; ++repeat) {
    log.clear();
    const auto [run, other_run] = generator.generate_in_turn(one, other);
    CHECK(log == "abbaabba");
    CHECK(run.tokens == std::vector<TokenId>{0, 1, 2, 3});
    CHECK(other_run.tokens == run.tokens);
    CHECK(run.step_ms.size() == 4);
    CHECK(run.prompt_tokens == 3);
    CHECK(one.length(0) == 6);  // the prompt and all drawn tokens but the last
  }
}

TEST_CASE("a generation that ends early leaves the other its steps") {
  std::string log;
  CountingDecoder one('a', log), other('b', log, 2);
  Generator generator({1}, 6, {}, nullptr, {3}, {});
  const auto [run, other_run] = generator.generate_in_turn(one, other);
  CHECK(log == "abbaaa");
  CHECK(run.tokens == std::vector<TokenId>{0, 1, 2, 3});
  CHECK(other_run.tokens == std::vector<TokenId>{2, 3});
  CHECK(generator.generate(other, false).tokens == other_run.tokens);
}

}  // namespace llama
