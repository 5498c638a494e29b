#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "examples/calibrate/schedule_file.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "tests/examples/llama/files.hpp"

using namespace llama;

TEST_CASE("schedule file: what is written is what the programs read") {
  const Candidate careful{{{{6, 0.1234}, {9, 0.5}}, lazyllm::AttentionScore::parse("max:16+layers+pool:5"), 4, 64},
                          2.5,
                          {.loss = 1.0 / 128,
                           .category_loss = {{"code", 1.0 / 64}, {"summaries", 0}},
                           .first_token_match = 1,
                           .kl = 0.00123456789,
                           .prompts = 16,
                           .tokens = 128}};
  Candidate daring = careful;
  daring.preset.schedule = lazyllm::Schedule{{2, 0.01}};
  daring.agreement.loss = 0.05;
  daring.agreement.category_loss = {{"", 0.05}};
  const auto file = schedule_file("tiny", 12, {{"1%", careful, 2.25}, {"5%", daring, 3}}, {careful, daring});
  const auto& preset = file["presets"]["1%"];
  CHECK(preset["measured"].dump() ==
        R"({"loss":0.007813,"first_token_match":1.0,"kl":0.001235,"ideal_ttft_speedup":2.5,"prompts":16,"tokens":128,)"
        R"("category_loss":{"code":0.015625,"summaries":0.0},"ttft_speedup":2.25})");
  CHECK(file["front"].size() == 2);
  CHECK(file["front"][1]["schedule"] == "2:0.01");
  CHECK(file["front"][1]["measured"]["loss"] == 0.05);
  CHECK_FALSE(file["front"][1]["measured"].contains("category_loss"));

  const test::TemporaryFolder folder;
  const std::string path = folder.write("schedules.json", file.dump(2));
  const nlohmann::json read = read_preset(path, 12);
  CHECK(read == nlohmann::json(careful.preset));
  CHECK(nlohmann::json(read_preset(path + "#5%", 12)) == nlohmann::json(daring.preset));
  CHECK(nlohmann::json(file["presets"]["5%"].get<lazyllm::Preset>()) == nlohmann::json(daring.preset));
  CHECK_THROWS_WITH_AS(read_preset(path, 11), doctest::Contains("made for a model with 12 layers, this one has 11"),
                       std::invalid_argument);
}
