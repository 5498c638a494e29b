#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "examples/calibrate/preset_file.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "tests/examples/llama/files.hpp"

using namespace llama;

TEST_CASE("preset file: what is written is what the programs read") {
  const Candidate careful{
      {{{6, 0.1234}, {9, 0.5}}, lazyllm::parse_score("max:16+heads:max+layers+pool:5"), 4, 64},
      2.5,
      {.kl = 0.00123456789, .kl_interval = {0, 1.0 / 3}, .top1 = 0.75, .prompts = 16, .tokens = 128}};
  Candidate daring = careful;
  daring.preset.schedule = lazyllm::Schedule{{2, 0.01}};
  const Agreement held_out{
      .kl = 0.5, .kl_interval = {0.25, 1}, .top1 = 1, .top1_interval = {0.5, 1}, .prompts = 8, .tokens = 64};
  const auto file =
      preset_file("tiny", 12, {{"1.5x", careful, held_out, 2.25}, {"3x", daring, held_out, 3}},
                  {.prompt_tokens = 3000, .chat = true, .dtype = "bf16", .int8 = true, .follow_up = "Why?"});
  CHECK(file["default"] == "1.5x");
  CHECK(file["presets"]["1.5x"]["measured"].dump() ==
        R"({"ideal_ttft_speedup":2.5,"ttft_speedup":2.25,)"
        R"("held_out":{"kl":0.5,"kl_95%":[0.25,1.0],"top1":1.0,"top1_95%":[0.5,1.0],"prompts":8,"tokens":64},)"
        R"("searched":{"kl":0.001235,"kl_95%":[0.0,0.333333],"top1":0.75,"top1_95%":[0.0,0.0],)"
        R"("prompts":16,"tokens":128},)"
        R"("with":{"prompt_tokens":3000,"chat":true,"dtype":"bf16","weights":"int8","follow_up":"Why?"}})");

  const test::TemporaryFolder folder;
  const std::string path = folder.write("schedules.json", file.dump(2));
  const nlohmann::json read = read_preset(path, 12);
  CHECK(read == nlohmann::json(careful.preset));
  CHECK(nlohmann::json(read_preset(path + "#3x", 12)) == nlohmann::json(daring.preset));
  CHECK(nlohmann::json(file["presets"]["3x"].get<lazyllm::Preset>()) == nlohmann::json(daring.preset));
  CHECK_THROWS_WITH_AS(read_preset(path, 11), doctest::Contains("made for a model with 12 layers, this one has 11"),
                       std::invalid_argument);
}
