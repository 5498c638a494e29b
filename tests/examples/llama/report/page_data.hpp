#pragma once

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "examples/llama/report/page.hpp"

namespace llama::test {

/// The data of a page as a browser finds it: the text of the script element `data` ends at the first `</script`. Checks
/// that all the rest is the template.
inline nlohmann::json page_data(const std::string& page) {
  const std::string_view start = "<script id=\"data\" type=\"application/json\">";
  const std::string_view source = report_template();
  const std::size_t begin = page.find(start) + start.size();
  const std::size_t end = page.find("</script", begin);
  REQUIRE(end != std::string::npos);
  CHECK(page.substr(0, begin) == source.substr(0, source.find(start) + start.size()));
  CHECK(page.substr(end) == source.substr(source.find("</script", source.find(start))));
  return nlohmann::json::parse(page.substr(begin, end - begin));
}

/// In how many layers each token was active, step by step.
inline std::vector<std::vector<int>> active_layers(const nlohmann::json& data) {
  const std::string_view alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
  const std::size_t digits = data.at("digits");
  std::vector<std::vector<int>> steps;
  for (const std::string line : data.at("steps")) {
    REQUIRE(line.size() % digits == 0);
    std::vector<int> step;
    for (std::size_t i = 0; i < line.size(); i += digits) {
      std::size_t number = 0;
      for (std::size_t k = i; k < i + digits; ++k) number = number * 64 + alphabet.find(line[k]);
      step.push_back(static_cast<int>(number));
    }
    steps.push_back(step);
  }
  return steps;
}

}  // namespace llama::test
