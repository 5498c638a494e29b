#include <doctest/doctest.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include "examples/llama/library.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "tests/examples/llama/files.hpp"
#include "tests/support/source_folder.hpp"

using namespace llama;
using Kind = lazyllm::Selection::Kind;

namespace {

/// Of the policy `text` for a model of 10 layers with 100 active tokens, in the sequence's step number `steps`.
lazyllm::Selection select(const char* text, Index layers_run, Index steps = 0) {
  return lazyllm::parse_policy(text, 10)(
      {.layers_run = layers_run, .layers = 10, .active_tokens = 100, .tokens = 120, .new_tokens = 120, .steps = steps});
}

}  // namespace

TEST_CASE("dense prunes nowhere, paper keeps 70 % after each 30 % of the layers") {
  for (Index layer = 1; layer < 10; ++layer) {
    CHECK(select("dense", layer).kind == Kind::all);
    const bool prunes = layer % 3 == 0;
    CHECK(select("paper", layer).kind == (prunes ? Kind::top_k : Kind::all));
    if (prunes) CHECK(select("paper", layer).k == 70);
  }
}

TEST_CASE("a list prunes after its layers, top-k or top-p") {
  CHECK(select("3:0.5,7:0.251", 3).k == 50);
  CHECK(select("3:0.5,7:0.251", 7).k == 26);
  CHECK(select("3:0.5,7:0.251", 4).kind == Kind::all);
  CHECK(select("top-p@3:0.5,7:0.25", 7).kind == Kind::top_p);
  CHECK(select("top-p@3:0.5,7:0.25", 7).p == 0.25);
  CHECK(select("top-p@3:0.5,7:0.25", 4).kind == Kind::all);
}

TEST_CASE("static prunes in the first step only and revives nothing later") {
  CHECK(select("static@3:0.5", 3).k == 50);
  CHECK(select("static@3:0.5", 4).kind == Kind::all);
  CHECK(select("static@3:0.5", 3, 1).kind == Kind::not_pruned_before);
  CHECK(select("static@3:0.5", 4, 1).kind == Kind::not_pruned_before);
}

TEST_CASE("anything else is an error that shows the text") {
  for (const char* text :
       {"", "Paper", "dense ", "3", "3:", ":0.5", "3:0.5,", "3:0.5;4:0.5", "3:x", "3.5:0.5", "@3:0.5", "top-p@",
        "top-p", "top-p=2@3:0.5", "random=1@3:0.5", "static@static@3:0.5", "top-p@paper", "top-p@dense"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(lazyllm::parse_policy(text, 10), doctest::Contains("schedule '"), lazyllm::invalid_argument);
  }
}

TEST_CASE("layers and shares out of range are errors that say the range") {
  for (const char* kind : {"", "top-p@", "static@"}) {
    const auto parse = [kind](const char* list) { return lazyllm::parse_policy(std::string(kind) + list, 10); };
    CHECK_THROWS_WITH_AS(parse("10:0.5"), doctest::Contains("layer 10 is out of range 1 to 9"),
                         lazyllm::invalid_argument);
    CHECK_THROWS_WITH_AS(parse("0:0.5"), doctest::Contains("layer 0 is out of range"), lazyllm::invalid_argument);
    CHECK_THROWS_WITH_AS(parse("5:0.5,5:0.4"), doctest::Contains("layer 5 is out of range"), lazyllm::invalid_argument);
    CHECK_THROWS_WITH_AS(parse("3:0"), doctest::Contains("(0, 1]"), lazyllm::invalid_argument);
    CHECK_THROWS_WITH_AS(parse("3:1.5"), doctest::Contains("keep 1.5"), lazyllm::invalid_argument);
    CHECK_THROWS_WITH_AS(parse("3:nan"), doctest::Contains("(0, 1]"), lazyllm::invalid_argument);
    CHECK_NOTHROW(parse("9:1"));
  }
  CHECK_NOTHROW(lazyllm::parse_policy("paper", 1));
}

namespace {

constexpr const char* two_presets =
    R"({"format": 1, "model": "m", "layers": 10, "default": "5%", "front": [], "presets": {
    "5%": {"schedule": "3:0.5", "score": "mean:8", "protect_first": 4, "protect_last": 6, "measured": {"loss": 0}},
    "10%": {"schedule": "2:0.25"}}})";

/// Parses a command line as the programs do.
PruningOptions parse(const std::vector<std::string>& arguments) {
  PruningOptions options;
  CLI::App app;
  add_pruning_options(app, options);
  app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  return options;
}

lazyllm::Selection selection(const lazyllm::TokenPruner<lazyllm::AnyPolicy>& pruner, Index layers_run) {
  return pruner.selection(
      {.layers_run = layers_run, .layers = 10, .active_tokens = 100, .tokens = 120, .new_tokens = 120, .steps = 0});
}

/// The message for `--schedule @FILE…` where the file holds `content`, without the file's path.
std::string error_for_file(const std::string& content, const std::string& name = "") {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("schedules.json", content);
  try {
    PruningOptions options;
    options.schedule = "@" + path + name;
    make_pruner(options, 10);
  } catch (const std::exception& error) {
    const std::string message = error.what();
    const std::size_t at = message.find(path);
    REQUIRE(at != std::string::npos);
    return message.substr(at + path.size());
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("options without a preset: the paper's unless they are given") {
  const auto pruner = make_pruner(parse({"--schedule", "paper"}), 10);
  CHECK(selection(pruner, 3).k == 70);
  CHECK(selection(pruner, 3).protect_first == 0);
  CHECK(selection(pruner, 3).protect_last == 1);
  CHECK(lazyllm::to_text(pruner.score()) == "last");
  const auto other = make_pruner(
      parse({"--schedule", "3:0.5", "--score", "max:4", "--protect-first", "2", "--protect-last", "3"}), 10);
  CHECK(selection(other, 3).k == 50);
  CHECK(selection(other, 3).protect_first == 2);
  CHECK(selection(other, 3).protect_last == 3);
  CHECK(lazyllm::to_text(other.score()) == "max:4");
  CHECK_THROWS_AS(parse({"--protect-last", "0"}), CLI::ValidationError);
  CHECK_THROWS_AS(parse({"--protect-first", "-1"}), CLI::ValidationError);
  for (const char* count : {"--protect-first", "--protect-last", "--max-revived", "--decode-revived", "--first-revived",
                            "--revive-from", "--min-tokens"}) {
    CAPTURE(count);
    CHECK_NOTHROW(parse({count, "2147483647"}));  // what a preset of a file may have
    for (const char* above : {"2147483648", "9223372036854775807"}) {
      CHECK_THROWS_WITH_AS(parse({count, above}), doctest::Contains(" to 2147483647"), CLI::ValidationError);
    }
  }
}

TEST_CASE("a recommended preset by its speedup, and as the default") {
  const auto said = [](const std::vector<std::string>& arguments) {
    const PruningOptions options = resolved(parse(arguments), 30);
    return options.schedule + " " + *options.score + " " + std::to_string(*options.protect_first) + " " +
           std::to_string(*options.protect_last) + " " + std::to_string(options.decode_revived.value_or(-1));
  };
  const auto described = [](double speedup) {
    const lazyllm::Preset preset = lazyllm::recommended(30, speedup);
    return lazyllm::to_text(preset.schedule) + " " + lazyllm::to_text(preset.score) + " 4 32 " +
           std::to_string(*preset.decode_revived);
  };
  CHECK(said({}) == described(1.5));
  CHECK(said({"--schedule", "auto:2.3x"}) == described(2.3));
  CHECK(said({"--schedule", "auto:2.3x", "--score", "last", "--protect-first", "1"}) ==
        lazyllm::to_text(lazyllm::recommended(30, 2.3).schedule) + " last 1 32 3");
  CHECK(said({}).ends_with(" 4"));
  CHECK(said({"--schedule", "paper"}) == "paper last 0 1 -1");
  const auto decode = [](const std::vector<std::string>& arguments, Index decoded_tokens = 0) {
    return make_pruner(parse(arguments), 30)
        .selection({.layers_run = 9,
                    .layers = 30,
                    .active_tokens = 100,
                    .tokens = 400,
                    .new_tokens = 1,
                    .decoded_tokens = decoded_tokens});
  };
  CHECK(decode({"--schedule", "9:0.5"}).k == 50);
  CHECK(decode({"--schedule", "9:0.5", "--decode-revived", "3"}).k == 100);
  CHECK(decode({"--schedule", "9:0.5", "--decode-revived", "3"}).max_revived == 3);
  CHECK(decode({"--schedule", "9:0.5", "--decode-revived", "3", "--first-revived", "5"}).max_revived == 5);
  CHECK(decode({"--schedule", "auto:2x"}).max_revived == 32);
  CHECK(decode({"--schedule", "auto:2x"}, 1).kind == lazyllm::Selection::Kind::not_pruned_before);
  CHECK(decode({"--schedule", "auto:2x", "--decode-revived", "5"}).max_revived == 32);  // of the preset
  CHECK(decode({"--schedule", "auto:2x", "--decode-revived", "5", "--revive-from", "0"}, 1).max_revived == 5);
  CHECK(decode({"--schedule", "auto:1.5x"}, 1).kind == lazyllm::Selection::Kind::not_pruned_before);
  CHECK(decode({"--schedule", "auto:1.5x", "--revive-from", "9"}, 1).max_revived == 4);
  CHECK(decode({"--schedule", "9:0.5", "--decode-revived", "3", "--revive-from", "10"}).kind ==
        lazyllm::Selection::Kind::not_pruned_before);
  CHECK(decode({"--schedule", "auto:2x", "--min-tokens", "401"}).kind == lazyllm::Selection::Kind::not_pruned_before);
  CHECK(decode({"--schedule", "9:0.5", "--min-tokens", "401"}).kind == lazyllm::Selection::Kind::not_pruned_before);
  CHECK(resolved(parse({}), 30).min_tokens == 384);
  CHECK(make_pruner(parse({}), 30).score() == lazyllm::recommended(30, 1.5).score);
}

TEST_CASE("a schedule or score that is none is refused with its option, its text and what is allowed") {
  const std::string forms =
      "; the forms are auto:SPEEDUPx, dense, LAYER:KEEP,..., top-p@LAYER:KEEP,..., static@LAYER:KEEP,..., paper, "
      "@FILE and @FILE#NAME";
  const auto check = [](const char* option, const char* text, const std::string& reason) {
    CAPTURE(text);
    CHECK_THROWS_WITH(make_pruner(parse({option, text}), 30),
                      fmt::format("{} \"{}\": {}", option, text, reason).c_str());
  };
  check("--schedule", "auto", "schedule 'auto': 'auto' is not LAYER:KEEP, e.g. 9:0.7" + forms);
  check("--schedule", "paper@3", "schedule 'paper@3': 'paper@' is not one of top-p@, static@, paper" + forms);
  check("--schedule", "30:0.5", "schedule: layer 30 is out of range 1 to 29 of a model with 30 layers" + forms);
  check("--schedule", "auto:5x", "recommended: speedup 5 is out of range 1 to 4");
  check("--schedule", "auto:fast", "schedule 'auto:fast' is not auto:SPEEDUPx, e.g. auto:2.3x");
  check("--score", "mean:0", "AttentionScore: last_queries 0 is out of range, at least 1");
  check("--score", "mean:32+pool:4", "AttentionScore: pooling 4 is out of range: odd and at least 1");
}

TEST_CASE("a preset file: its default preset, a named one, and options that win over it") {
  const test::TemporaryFolder folder;
  const std::string file = "@" + folder.write("a#b.json", two_presets).string();
  const auto preset = make_pruner(parse({"--schedule", file + "#5%"}), 10);
  CHECK(selection(preset, 3).k == 50);
  CHECK(selection(preset, 3).protect_first == 4);
  CHECK(selection(preset, 3).protect_last == 6);
  CHECK(lazyllm::to_text(preset.score()) == "mean:8");

  const std::string plain = "@" + folder.write("b.json", two_presets).string();
  CHECK(selection(make_pruner(parse({"--schedule", plain}), 10), 3).protect_first == 4);
  const auto other = make_pruner(parse({"--schedule", plain + "#10%"}), 10);
  CHECK(selection(other, 2).k == 25);
  CHECK(selection(other, 2).protect_last == 1);
  CHECK(lazyllm::to_text(other.score()) == "last");

  const auto overridden =
      make_pruner(parse({"--schedule", plain, "--score", "last", "--protect-first", "0", "--protect-last", "1"}), 10);
  CHECK(selection(overridden, 3).k == 50);
  CHECK(selection(overridden, 3).protect_first == 0);
  CHECK(selection(overridden, 3).protect_last == 1);
  CHECK(lazyllm::to_text(overridden.score()) == "last");
}

TEST_CASE("a preset file: a '#' in a folder's name, or in that of a file that is there, separates nothing") {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "c#");
  const std::string file = folder.write("c#/p.json", two_presets);
  const std::string sharp = folder.write("c#/a#b", two_presets);
  PruningOptions options;
  const auto check = [&](const std::string& text, const std::string& of_file, Index layers_run, Index kept) {
    CAPTURE(text);
    options.schedule = "@" + text;
    CHECK(preset_file_of(options) == of_file);
    CHECK(selection(make_pruner(options, 10), layers_run).k == kept);
  };
  check(file, file, 3, 50);
  check(file + "#10%", file, 2, 25);
  check(sharp, sharp, 3, 50);
  check(sharp + "#10%", sharp, 2, 25);
  options.schedule = "@none#10%";
  CHECK(preset_file_of(options) == "none");
  options.schedule = "1:0.5";
  CHECK(preset_file_of(options).empty());
}

TEST_CASE("the preset files that come with the models are whole") {
  struct Shipped {
    const char* file;
    Index layers;
    std::vector<std::string> names;
  };
  const std::vector<std::string> speedups{"1.5x", "2.34x", "3x"};
  for (const Shipped& shipped :
       {Shipped{"presets/smollm2.json", 30, speedups}, Shipped{"presets/qwen2.5-coder-0.5b.json", 24, speedups},
        Shipped{"tiny/schedules.json", 12, {"1%", "5%", "10%"}}}) {
    CAPTURE(shipped.file);
    const std::string file = lazyllm::test::source_folder() / "examples/models" / shipped.file;
    for (const std::string& name : shipped.names) {
      CAPTURE(name);
      const lazyllm::Preset preset = read_preset(fmt::format("{}#{}", file, name), shipped.layers);
      CHECK_FALSE(preset.schedule.points().empty());
      CHECK(preset.score.last_queries > 1);  // none ranks as the paper does
      if (shipped.names != speedups) continue;
      CHECK(preset.max_revived == lazyllm::recommended_max_revived);
      CHECK(preset.min_tokens == lazyllm::recommended_min_tokens);
    }
    CHECK_NOTHROW(read_preset(file, shipped.layers));  // the default
  }
}

TEST_CASE("preset files that cannot be used are refused by file, place and what there is") {
  const auto replaced = [](const std::string& part, const std::string& by) {
    std::string text = two_presets;
    const std::size_t at = text.find(part);
    REQUIRE(at != std::string::npos);
    return text.replace(at, part.size(), by);
  };
  CHECK(error_for_file(two_presets) == "nothing was thrown");
  CHECK_THROWS_WITH(make_pruner(parse({"--schedule", "@no/such/file.json"}), 10), doctest::Contains("no/such/file"));
  CHECK_THROWS(make_pruner(parse({"--schedule", "@"}), 10));
  CHECK(error_for_file("").find("empty") != std::string::npos);
  CHECK(error_for_file("6:0.5").find("not valid JSON") != std::string::npos);
  CHECK(error_for_file(std::string(100000, '[')).find("nested deeper") != std::string::npos);
  CHECK(error_for_file(std::string(two_presets) + '\0') == ": not valid JSON: a zero byte at line 3, column 36");
  CHECK(error_for_file("[]") == ": the file holds [], not an object: no preset file");
  CHECK(error_for_file("1") == ": the file holds 1, not an object: no preset file");
  CHECK(error_for_file(replaced("\"format\": 1", "\"format\": 1.0")) == ": format 1.0 is not 1: no preset file");
  CHECK(error_for_file("{}") == ": format null is not 1: no preset file");
  CHECK(error_for_file(replaced("\"format\": 1", "\"format\": 2")) == ": format 2 is not 1: no preset file");
  CHECK(error_for_file(replaced("\"layers\": 10", "\"layers\": 12")) ==
        ": made for a model with 12 layers, this one has 10");
  CHECK(error_for_file(replaced("\"layers\": 10", "\"layers\": \"10\"")).find("with \"10\" layers") !=
        std::string::npos);
  CHECK(error_for_file(R"({"format": 1, "layers": 10, "presets": []})") == ": presets [] is not an object");
  CHECK(error_for_file(two_presets, "#1%") == ": no preset \"1%\"; there are \"10%\", \"5%\"");
  CHECK(error_for_file(two_presets, "#") == ": no preset \"\"; there are \"10%\", \"5%\"");
  CHECK(error_for_file(replaced("\"default\": \"5%\"", "\"default\": \"2%\"")) ==
        ": no preset \"2%\"; there are \"10%\", \"5%\"");
  CHECK(error_for_file(replaced("\"default\": \"5%\",", "")) ==
        ": default null names no preset; write FILE#NAME with one of \"10%\", \"5%\"");
  CHECK(error_for_file(R"({"format": 1, "layers": 10, "presets": {}})", "#a").find("there are none") !=
        std::string::npos);
  CHECK(error_for_file(replaced("3:0.5", "10:0.5")) ==
        ", preset \"5%\": schedule: layer 10 is out of range 1 to 9 of a model with 10 layers");
  CHECK(error_for_file(replaced("\"protect_first\": 4", "\"protect_first\": -4")) ==
        ", preset \"5%\": preset: protect_first -4 is out of range: a whole number from 0 to 2147483647");
  for (const char* name : {"first_revived", "continuations", "revive_from"}) {
    const std::string message =
        error_for_file(replaced("\"2:0.25\"", fmt::format("\"2:0.25\", \"{}\": 3", name)), "#10%");
    CHECK(message.starts_with(fmt::format(", preset \"10%\": preset: {} 3 need", name)));
  }
  CHECK(error_for_file(replaced("\"2:0.25\"", "7"), "#10%") == ", preset \"10%\": preset: schedule 7 is not a text");
}
