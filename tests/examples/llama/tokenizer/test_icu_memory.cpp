#include <doctest/doctest.h>

#include <new>

#include "support.hpp"
#include "tests/support/failing_icu.hpp"

namespace llama::test {
namespace {

using nlohmann::json;

/// `action()` with each of ICU's allocations failing in turn must throw, and without a failure give `expected`.
template <class Result, class Action>
void check_each_failure(const Result& expected, const Action& action) {
  long& before_failure = lazyllm::test::icu_before_failure;
  lazyllm::test::watch_icu();
  for (long n = 0;; ++n) {
    CAPTURE(n);
    before_failure = n;
    try {
      const Result result = action();
      const bool failed = before_failure < 0;
      before_failure = -1;
      CHECK(result == expected);
      if (!failed) return;
    } catch (const std::bad_alloc&) {
      before_failure = -1;
    } catch (const tokenizer_error& error) {
      before_failure = -1;
      CHECK(std::string(error.what()).find("regex stack overflow") != std::string::npos);  // all that ICU says
    }
  }
}

TEST_CASE("tokenizer.json: a text for which ICU gets no memory is an error, not another text") {
  // Pieces of more bytes than ICU keeps without memory of its own: 27 units of UTF-16, 1024 bytes of UTF-8.
  const std::string word = "a\u00e9On the world of words and of the other words ";
  const std::string text = word + std::string(1100, 'a') + std::string(60, ' ') + word;
  const auto check = [&](const json& file) {
    const TemporaryFolder folder;
    const auto tokenizer = open_tokenizer(folder.write("tokenizer.json", file.dump()));
    const auto tokens = tokenizer->encode(text, true);
    check_each_failure(tokens, [&] { return tokenizer->encode(text, true); });
  };
  for (const char* name : {"gpt2", "llama3", "qwen", "llama2_metaspace", "llama2_prepend"}) {
    CAPTURE(name);
    check(json::parse(std::ifstream(fixture(std::string(name) + ".json"))));
  }
  for (const json& variant : json::parse(std::ifstream(fixture("variants.json")))) {
    CAPTURE(variant["name"]);
    json file = json::parse(std::ifstream(fixture(variant["base"].get<std::string>() + ".json")));
    file.merge_patch(variant["patch"]);
    check(file);
  }
}

TEST_CASE("text stream: no text is lost where ICU gets no memory") {
  const std::string text(1100, 'x');
  check_each_failure(text, [&] { return TextStream().push(text); });
}

}  // namespace
}  // namespace llama::test
