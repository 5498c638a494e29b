#include "examples/llama/report/report.hpp"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "examples/llama/library.hpp"
#include "examples/llama/report/page.hpp"

namespace llama {
namespace {

using Json = nlohmann::ordered_json;

/// The text of each token, whole characters only: "" for a token that ends inside a character, which stands at the
/// token that completes it, and null for a token that has no text, such as BOS.
Json token_texts(const Report& report) {
  std::vector<std::optional<std::string>> texts;
  TextStream stream;
  std::size_t last = 0;  // token with bytes
  const auto flush = [&] {
    if (const std::string rest = stream.flush(); !rest.empty()) *texts[last] += rest;
  };
  TokenId previous = no_token;
  for (const TokenId token : report.tokens) {
    const std::string bytes = report.tokenizer->decode(previous, token);
    if (bytes.empty()) {
      flush();
      texts.emplace_back();
    } else {
      last = texts.size();
      texts.emplace_back(stream.push(bytes));
    }
    previous = token;
  }
  flush();
  Json list = Json::array();
  for (const auto& text : texts) list.push_back(text ? Json(*text) : Json());
  return list;
}

/// Numbers below 64 or, with two digits each, below 4096.
std::string base64(const ActiveLayers& numbers, int digits) {
  constexpr std::string_view alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
  std::string text;
  text.reserve(numbers.size() * static_cast<std::size_t>(digits));
  for (const lazyllm::Depth number : numbers) {
    if (digits == 2) text += alphabet[static_cast<std::size_t>(number / 64)];
    text += alphabet[static_cast<std::size_t>(number % 64)];
  }
  return text;
}

/// JSON that can stand in a script element: nothing in it can end the element or start a comment.
std::string script_safe(const Json& data) {
  std::string text;
  for (const char c : data.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    switch (c) {
      case '<': text += "\\u003c"; break;
      case '>': text += "\\u003e"; break;
      case '&': text += "\\u0026"; break;
      default: text += c;
    }
  }
  return text;
}

void check(const Report& report) {
  if (report.layers < 1 || report.layers > 4095) {
    fail("report_page: layers ", report.layers, " is out of range 1 to 4095");
  }
  if (report.steps.empty() || report.steps.front().empty()) fail("report_page: no step, at least 1 is needed");
  const std::size_t prompt = report.steps.front().size();
  if (report.tokens.size() != prompt + report.steps.size()) {
    fail("report_page: ", report.tokens.size(), " tokens, must be ", prompt, " of the prompt and one for each of ",
         report.steps.size(), " steps");
  }
  for (std::size_t step = 0; step < report.steps.size(); ++step) {
    if (report.steps[step].size() != prompt + step) {
      fail("report_page: step ", step, " has ", report.steps[step].size(), " tokens, must have ", prompt + step);
    }
    for (const lazyllm::Depth active : report.steps[step]) {
      if (active >= 1 && active <= report.layers) continue;
      fail("report_page: step ", step, " has a token active in ", active, " layers, out of range 1 to ", report.layers);
    }
  }
}

}  // namespace

void record(const lazyllm::LayerPlan& plan, ActiveLayers& active) {
  active.resize(static_cast<std::size_t>(plan.sequence(0).tokens));
  for (const Position key : plan.keys())
    active[static_cast<std::size_t>(key)] = static_cast<lazyllm::Depth>(plan.layer() + 1);
}

std::string report_page(const Report& report, const Json& figures) {
  check(report);
  const int digits = report.layers < 64 ? 1 : 2;
  Json steps = Json::array();
  for (const ActiveLayers& active : report.steps) steps.push_back(base64(active, digits));
  const Json data = {{"figures", figures},
                     {"layers", report.layers},
                     {"prompt", report.steps.front().size()},
                     {"ids", report.tokens},
                     {"texts", report.tokenizer == nullptr ? Json() : token_texts(report)},
                     {"digits", digits},
                     {"steps", steps}};
  constexpr std::string_view mark = "{\"data\": \"goes here\"}";
  std::string page(report_template());
  page.replace(page.find(mark), mark.size(), script_safe(data));
  return page;
}

}  // namespace llama
