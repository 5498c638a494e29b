#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "bench/evaluate/method.hpp"
#include "tests/examples/llama/checkpoint/support.hpp"

using namespace llama;
using testing::check_rejected;

namespace {

MethodOptions options(const std::string& method, const std::string& schedule) {
  MethodOptions options;
  options.method = parse_method(method);
  options.pruning.schedule = schedule;
  return options;
}

nlohmann::json described(const MethodOptions& options) { return to_json(resolve(options, 10)); }

}  // namespace

TEST_CASE("methods have names") {
  for (const char* name : {"dense", "lazy", "static", "random-drop", "compress"}) {
    CHECK(name_of(parse_method(name)) == name);
  }
  check_rejected<std::invalid_argument>([] { parse_method("magic"); }, {"magic", "random-drop"});
}

TEST_CASE("what is left open is filled in, and only what matters is described") {
  using Json = nlohmann::json;
  CHECK(described(options("dense", "3:0.5")) == Json{{"method", "dense"}});
  CHECK(described(options("lazy", "paper")) ==
        Json{{"method", "lazy"}, {"schedule", "paper"}, {"score", "last"}, {"protect_first", 0}, {"protect_last", 1}});
  MethodOptions revived = options("lazy", "3:0.5");
  revived.pruning.max_revived = 5;
  revived.pruning.decode_revived = 7;
  revived.pruning.first_revived = 9;
  revived.pruning.revive_from = 3;
  revived.pruning.min_tokens = 6;
  CHECK(described(revived).at("max_revived") == 5);
  CHECK(described(revived).at("decode_revived") == 7);
  CHECK(described(revived).at("first_revived") == 9);
  CHECK(described(revived).at("revive_from") == 3);
  CHECK(described(revived).at("min_tokens") == 6);
  CHECK(described(options("static", "3:0.5")).at("schedule") == "static@3:0.5");
  CHECK(described(options("static", "static@3:0.5")).at("schedule") == "static@3:0.5");
  MethodOptions drop = options("random-drop", "paper");
  drop.pruning.protect_last = 8;
  CHECK(described(drop) == Json{{"method", "random-drop"},
                                {"keep", 0.4},
                                {"protect_first", 0},
                                {"protect_last", 8},
                                {"seed", 1},
                                {"seeds", 5}});
}

TEST_CASE("a preset's values take the place of its name, for filters its protection") {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("schedules.json", R"({"format": 1, "layers": 10, "default": "a", "presets": {
    "a": {"schedule": "4:0.5,7:0.25", "score": "mean:8", "protect_first": 4, "protect_last": 16}}})");
  const auto lazy = described(options("lazy", "@" + path));
  CHECK(lazy.at("schedule") == "4:0.5,7:0.25");
  CHECK(lazy.at("score") == "mean:8");
  CHECK(lazy.at("protect_first") == 4);
  CHECK(described(options("static", "@" + path + "#a")).at("schedule") == "static@4:0.5,7:0.25");
  MethodOptions compress = options("compress", "@" + path);
  compress.pruning.protect_first = 2;
  CHECK(described(compress).at("protect_first") == 2);
  CHECK(described(compress).at("protect_last") == 16);
  check_rejected<std::invalid_argument>([&] { resolve(options("lazy", "@" + path), 9); }, {"10 layers", "9"});
}

TEST_CASE("filters keep the token that starts a text, and what is protected") {
  MethodOptions compress = options("compress", "paper");
  compress.keep = 0.3;
  FilterOptions filter = filter_options(resolve(compress, 10), true);
  CHECK(filter.keep == 0.3);
  CHECK(filter.protect_first == 1);
  CHECK(filter.protect_last == 1);
  CHECK(filter_options(resolve(compress, 10), false).protect_first == 0);
  compress.pruning.protect_first = 5;
  compress.pruning.protect_last = 9;
  filter = filter_options(resolve(compress, 10), true);
  CHECK(filter.protect_first == 5);
  CHECK(filter.protect_last == 9);
}

TEST_CASE("options that do not fit are refused") {
  const auto refused = [](MethodOptions options, std::initializer_list<std::string_view> parts) {
    check_rejected<std::invalid_argument>([&] { resolve(options, 10); }, parts);
  };
  refused(options("static", "paper"), {"--method static needs --schedule", "paper"});
  refused(options("static", "top-p@3:0.5"), {"--method static needs --schedule", "top-p@3:0.5"});
  refused(options("lazy", "10:0.5"), {"--schedule \"10:0.5\"", "layer 10", "1 to 9"});
  MethodOptions drop = options("random-drop", "paper");
  drop.keep = 0;
  refused(drop, {"keep 0", "(0, 1]"});
  drop.keep = 0.5;
  drop.seeds = 0;
  refused(drop, {"seeds 0"});
  MethodOptions lazy = options("lazy", "paper");
  lazy.pruning.score = "median";
  refused(lazy, {"--score \"median\""});
}
