#include "examples/llama/library.hpp"
#include "examples/llama/report/report.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "examples/llama/report/page_data.hpp"

using namespace llama;
using Json = nlohmann::ordered_json;

namespace {

/// Each entry stands for its bytes; entry 0 is BOS, which has none.
class Words : public Tokenizer {
 public:
  explicit Words(std::vector<std::string> words) : words_(std::move(words)) {
    vocabulary_size_ = std::ssize(words_);
    special_.bos = 0;
  }
  std::vector<TokenId> encode(std::string_view, bool) const override { return {}; }

 private:
  std::string token_bytes(TokenId, TokenId token) const override { return words_[static_cast<std::size_t>(token)]; }

  std::vector<std::string> words_;
};

/// The data of the page of a run of one step whose prompt is all of `words` and whose answer is the last of them.
nlohmann::json one_step(const std::vector<std::string>& words, const Json& figures = Json::object()) {
  const Words tokenizer(words);
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < words.size(); ++i) tokens.push_back(static_cast<TokenId>(i));
  const std::vector<ActiveLayers> steps = {ActiveLayers(tokens.size(), 1)};
  tokens.push_back(tokens.back());
  return test::page_data(
      report_page({.tokens = tokens, .tokenizer = &tokenizer, .layers = 1, .steps = steps}, figures));
}

std::string page_of(std::vector<ActiveLayers> steps, Index layers, std::size_t tokens) {
  const std::vector<TokenId> ids(tokens, 7);
  return report_page({.tokens = ids, .layers = layers, .steps = steps}, Json::object());
}

const std::vector<std::string> hostile = {"</script><script>alert(1)</script>",
                                          "<!--<script>",
                                          "-->",
                                          "]]>",
                                          "<img src=x onerror=alert(1)>",
                                          "\"};alert(1);//",
                                          "\\\"",
                                          "&lt;/script&gt;",
                                          "</SCRIPT\t>",
                                          "{\"data\": \"goes here\"}",
                                          std::string("\0\x01\x1b", 3),
                                          "\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xae",
                                          "$& $1 @page@ )page\""};

}  // namespace

TEST_CASE("texts of a prompt come back as they were and cannot leave the data element") {
  std::vector<std::string> words = {""};
  words.insert(words.end(), hostile.begin(), hostile.end());
  Json figures = {{"answers", hostile}};
  for (const std::string& text : hostile) figures[text] = text;
  const nlohmann::json data = one_step(words, figures);
  CHECK(data.at("texts")[0].is_null());
  for (std::size_t i = 0; i < hostile.size(); ++i) CHECK(data.at("texts")[i + 1] == hostile[i]);
  CHECK(data.at("figures") == nlohmann::json(figures));
  // Nothing that could start markup is left in the data.
  const Words tokenizer(words);
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5};
  const std::vector<ActiveLayers> steps = {{1, 1, 1, 1}};
  const std::string page = report_page({.tokens = tokens, .tokenizer = &tokenizer, .layers = 1, .steps = steps}, {});
  for (const char c : {'<', '>', '&'}) {
    CHECK(std::ranges::count(page, c) == std::ranges::count(report_template(), c));
  }
}

TEST_CASE("the page has no address to load from, and puts texts into itself as text only") {
  const std::string_view page = report_template();
  CHECK(page.starts_with("<!DOCTYPE html>"));
  CHECK(page.find("default-src 'none'") != std::string_view::npos);
  for (const char* part : {"https:", " src=", "href", "@import", "url(", "fetch", "XMLHttp", "WebSocket", "innerHTML",
                           "outerHTML", "insertAdjacent", "document.write", "eval(", "Function("}) {
    CAPTURE(part);
    CHECK(page.find(part) == std::string_view::npos);
  }
  // The one address is the name of a vocabulary.
  CHECK(page.find("http:") == page.find("http://www.w3.org/2000/svg"));
  CHECK(page.find("http:") == page.rfind("http:"));
}

TEST_CASE("characters that several tokens make stand whole at the last of them") {
  const nlohmann::json data = one_step({"", "a\xe5", "\x90", "\x8d", "b", "\xf0\x9f", "", "\x99", "c\xc3"});
  const nlohmann::json& texts = data.at("texts");
  REQUIRE(texts.size() == 10);
  CHECK(texts[0].is_null());
  CHECK(texts[1] == "a");
  CHECK(texts[2] == "");
  CHECK(texts[3] == "\u540d");
  CHECK(texts[4] == "b");
  CHECK(texts[5] == "\ufffd");  // cut off by a token without text
  CHECK(texts[6].is_null());
  CHECK(texts[7] == "\ufffd");
  CHECK(texts[8] == "c");
  CHECK(texts[9] == "\ufffdc\ufffd");  // the answer repeats the last word
}

TEST_CASE("bytes of a settings path that are no UTF-8 are replaced") {
  CHECK(one_step({"", "a"}, {{"model", "x\xff"}}).at("figures").at("model") == "x\ufffd");
}

TEST_CASE("the layers in which each token was active come back, for few and for many layers") {
  for (const Index layers : {1, 63, 64, 126, 1000, 4095}) {
    CAPTURE(layers);
    std::vector<ActiveLayers> steps;
    for (std::size_t s = 0; s < 5; ++s) {
      ActiveLayers active;
      for (std::size_t t = 0; t < 30 + s; ++t) {
        active.push_back(static_cast<lazyllm::Depth>(1 + static_cast<Index>(t * 997 + s * 31) % layers));
      }
      active.back() = static_cast<lazyllm::Depth>(layers);
      steps.push_back(active);
    }
    const nlohmann::json data = test::page_data(page_of(steps, layers, 35));
    CHECK(data.at("layers") == layers);
    CHECK(data.at("prompt") == 30);
    CHECK(data.at("texts").is_null());  // no tokenizer: the page shows the ids
    CHECK(data.at("ids") == std::vector<TokenId>(35, 7));
    CHECK(test::active_layers(data) == steps);
  }
}

TEST_CASE("record counts the layers of a step in which each token is active") {
  ActiveLayers active;
  lazyllm::DensePlan buffers;
  buffers.start(2, 3);
  record(buffers.layer(0, 3), active);
  CHECK(active == ActiveLayers{1, 1, 1, 1, 1});
  buffers.start(0, 2);  // as if the other three had been pruned
  record(buffers.layer(1, 3), active);
  record(buffers.layer(2, 3), active);
  CHECK(active[0] == 3);
  CHECK(active[1] == 3);
}

TEST_CASE("4096 tokens and 64 steps fit in two megabytes") {
  std::vector<ActiveLayers> steps;
  for (std::size_t s = 0; s < 64; ++s) steps.emplace_back(4096 + s, static_cast<lazyllm::Depth>(80));
  CHECK(page_of(steps, 80, 4096 + 64).size() < 2'000'000);
}

TEST_CASE("steps that do not fit the tokens are an error that says what does not") {
  const auto message = [](std::vector<ActiveLayers> steps, Index layers, std::size_t tokens) -> std::string {
    try {
      page_of(std::move(steps), layers, tokens);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "none";
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(message({{1, 2}, {1, 1, 2}}, 2, 4) == "none");
  CHECK(has(message({{1, 2}}, 0, 3), "layers 0 is out of range 1 to 4095"));
  CHECK(has(message({{1, 2}}, 4096, 3), "layers 4096 is out of range 1 to 4095"));
  CHECK(has(message({}, 2, 3), "no step"));
  CHECK(has(message({{}}, 2, 1), "no step"));
  CHECK(has(message({{1, 2}}, 2, 2), "2 tokens, must be 2 of the prompt and one for each of 1 steps"));
  CHECK(has(message({{1, 2}, {1, 2}}, 2, 4), "step 1 has 2 tokens, must have 3"));
  CHECK(has(message({{1, 3}}, 2, 3), "step 0 has a token active in 3 layers, out of range 1 to 2"));
  CHECK(has(message({{1, 0}}, 2, 3), "step 0 has a token active in 0 layers, out of range 1 to 2"));
}
