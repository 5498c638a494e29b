#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "examples/calibrate/agreement.hpp"
#include "examples/calibrate/prompts.hpp"
#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "examples/llama/tokenizer/chat_template.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"
#include "tests/examples/llama/chatml.hpp"
#include "tests/examples/llama/embedded_model.hpp"
#include "tests/examples/llama/process.hpp"
#include "tests/examples/llama/toy_model.hpp"

using namespace llama;

namespace {

/// lazyllm-calibrate as a user runs it, in a folder of its own with a toy model and four prompts.
class CalibrateProgram {
 public:
  CalibrateProgram() {
    std::string lines;
    for (int i = 0; i < 4; ++i) {
      std::string prompt;
      for (int j = 0; j < 120; ++j) prompt += static_cast<char>('!' + (j * j * 7 + i * 31) % 90);
      lines += nlohmann::json{{"prompt", prompt}, {"category", i % 2 == 0 ? "even" : "odd"}}.dump() + "\n";
    }
    folder_.write("prompts.jsonl", lines);
  }

  test::ProcessResult run(const std::string& out, const std::vector<std::string>& more = {}) const {
    return test::run_process(LAZYLLM_CALIBRATE, arguments(out, more));
  }

  std::vector<std::string> arguments(const std::string& out, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"--model",   toy_.model, "--tokenizer", toy_.tokenizer,
                                          "--out",     path(out),  "--data",      path("prompts.jsonl"),
                                          "--threads", "1",        "--tokens",    "4"};
    const auto given = [&](const char* option) { return std::ranges::find(more, option) != more.end(); };
    if (!given("--schedule")) {
      arguments.insert(arguments.end(), {"--runs", "12"});
      // A list that is given twice is both of them.
      if (!given("--speedups")) arguments.insert(arguments.end(), {"--speedups", "1.2", "1.5"});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());  // the last value of an option counts
    return arguments;
  }

  std::string path(const std::string& name) const { return folder_.path() / name; }
  std::string write(const std::string& name, const std::string& bytes) const { return folder_.write(name, bytes); }
  nlohmann::json read(const std::string& name) const { return nlohmann::json::parse(test::read(path(name))); }
  const test::ToyModel& toy() const { return toy_; }

 private:
  test::TemporaryFolder folder_;
  test::ToyModel toy_{folder_};
};

/// Tokens that a decode step of `preset`, one of a preset file, revives at all its pruning layers together.
Index revived_in_a_step(const nlohmann::json& preset) {
  const auto read = preset.get<lazyllm::Preset>();
  return *read.decode_revived * std::ranges::count_if(read.schedule.points(), [&](const lazyllm::LayerKeep& point) {
    return point.layers_run >= read.revive_from.value_or(0);
  });
}

/// All but the times.
nlohmann::json untimed(nlohmann::json file) {
  for (auto& preset : file["presets"]) preset["measured"].erase("ttft_speedup");
  return file;
}

}  // namespace

TEST_CASE("calibrate: presets whose figures a run of the preset confirms, on prompts that were held out") {
  const CalibrateProgram program;
  const auto result = program.run("schedules.json");
  CAPTURE(result.err);
  REQUIRE(result.status == 0);
  const std::string note =
      "4 of 4 prompts are shorter than --min-tokens 384: presets of the file do not prune such ones\n";
  CHECK(result.err == note);
  for (const char* part : {"1.2x: ", "1.5x: ", " revives ", "held out: KL ", "searched: KL ", "TTFT speedup"})
    CHECK(result.out.find(part) != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(program.path("schedules.json.part")));

  const nlohmann::json file = program.read("schedules.json");
  CHECK(file["model"] == "toy.bin");
  CHECK(file["default"] == "1.2x");
  CHECK(file["presets"].size() == 2);
  for (const nlohmann::json& preset : file["presets"]) {
    CHECK(revived_in_a_step(preset) == 3);
    CHECK(preset["first_revived"] == 32);
    CHECK(preset["continuations"] == 2);
  }

  const Checkpoint checkpoint(program.toy().model);
  const auto model = open_model(checkpoint.config(), weights_of(checkpoint), {});
  const auto tokenizer = open_tokenizer(program.toy().tokenizer, checkpoint.config().vocab);
  const auto dense = model->dense(256);
  for (const double speedup : {1.2, 1.5}) {
    CAPTURE(speedup);
    const std::string name = speedup == 1.2 ? "1.2x" : "1.5x";
    lazyllm::Preset preset = read_preset(program.path("schedules.json") + "#" + name, test::ToyModel::layers);
    preset.min_tokens.reset();  // it is of the file alone
    const auto lazy = model->lazy(256, make_pruner(preset));
    std::vector<Outcome> outcomes;
    double dense_operations = 0;
    double lazy_operations = 0;
    for (const Prompt& prompt : read_prompts(program.path("prompts.jsonl"))) {
      const double dense_before = dense->operations();
      const double lazy_before = lazy->operations();
      const std::vector<TokenId> tokens = tokenizer->encode(prompt.text, true);
      dense->clear();
      dense->step(tokens);
      lazy->clear();
      lazy->step(tokens);
      dense_operations += dense->operations() - dense_before;
      lazy_operations += lazy->operations() - lazy_before;
      outcomes.push_back(agree(*lazy, make_reference(*dense, tokens, 4, tokenizer->stop_tokens())));
    }
    const nlohmann::json& measured = file["presets"][name]["measured"];
    CHECK(measured["ideal_ttft_speedup"] == doctest::Approx(dense_operations / lazy_operations).epsilon(1e-5));
    CHECK(measured["ideal_ttft_speedup"] >= speedup);
    CHECK(measured["ttft_speedup"] > 0);
    // Prompts 0 and 2 are even, 1 and 3 odd: of the even ones the second is held out, of the odd ones the first.
    const auto check = [&](const char* half, const std::vector<Outcome>& of_half) {
      CAPTURE(half);
      const Agreement agreement = summarize(of_half);
      CHECK(std::abs(measured[half]["kl"].get<double>() - agreement.kl) < 1e-5);
      CHECK(measured[half]["top1"] == doctest::Approx(agreement.top1).epsilon(1e-5));
      CHECK(std::abs(measured[half]["kl_95%"][1].get<double>() - agreement.kl_interval.high) < 1e-5);
      CHECK(measured[half]["prompts"] == 2);
      CHECK(measured[half]["tokens"] == agreement.tokens);
    };
    check("searched", {outcomes[0], outcomes[3]});
    check("held_out", {outcomes[1], outcomes[2]});
    // BOS, a space and 120 characters.
    CHECK(measured["with"] == nlohmann::json{{"prompt_tokens", 122}, {"chat", false}, {"dtype", "f32"}});
  }
}

TEST_CASE("calibrate: a terminal shows what is tried, the best so far and the time that is left") {
  const CalibrateProgram program;
  std::string command(LAZYLLM_CALIBRATE);
  for (const std::string& argument : program.arguments("schedules.json")) command.append(" ").append(argument);
  const auto result = test::run_process("script", {"-q", "-e", "-c", command, "/dev/null"});  // gives it a terminal
  REQUIRE(result.status == 0);
  const std::string number = "[0-9.]+";
  const std::string preset =
      "[0-9:.,]+ (last|mean|max)[0-9a-z:+]* protects [0-9]+ [+] [0-9]+ revives [1-4]( from [0-9]+ on)?";
  CHECK(std::regex_search(result.out, std::regex("1/4  ETA [0-9hms]+  dense")));
  CHECK(std::regex_search(result.out, std::regex("ETA [0-9hms?]+  search, best at 1\\.[0-9]+x: KL " + number +
                                                 ", top-1 " + number + " % by " + preset + ", now " + preset)));
  CHECK(std::regex_search(result.out, std::regex("held out, 1.5x, now " + preset)));
  CHECK(std::regex_search(result.out, std::regex("ETA [0-9hms?]+  timed, 1.5x")));
  CHECK(result.out.find("\r\033[K\033[?7l[") != std::string::npos);  // written over, and never a second row
}

TEST_CASE("calibrate: an interrupted search goes on and ends as if it had not been") {
  const CalibrateProgram program;
  REQUIRE(program.run("whole.json").status == 0);
  const std::string log = test::read(program.path("whole.json.log.jsonl"));
  const auto lines = std::ranges::count(log, '\n');
  REQUIRE(lines > 20);

  program.write("part.json.log.jsonl", log.substr(0, log.size() / 2));
  REQUIRE(program.run("part.json", {"--resume"}).status == 0);
  CHECK(test::read(program.path("part.json.log.jsonl")) == log);
  CHECK(untimed(program.read("part.json")) == untimed(program.read("whole.json")));

  // An outcome that is in the log is believed, not measured again.
  const std::string wrong = std::regex_replace(log, std::regex("\"equal\":[0-9]+"), "\"equal\":0");
  program.write("wrong.json.log.jsonl", wrong);
  REQUIRE(program.run("wrong.json", {"--resume"}).status == 0);
  CHECK(program.read("wrong.json")["presets"]["1.5x"]["measured"]["held_out"]["top1"] == 0);
  // Outcomes that compare with other answers are not.
  const std::string others = std::regex_replace(log, std::regex("\"answers\":[0-9]+"), "\"answers\":1");
  REQUIRE(others != log);
  program.write("others.json.log.jsonl", others);
  const auto compared = program.run("others.json", {"--resume"});
  CHECK(compared.status == 1);
  CHECK(compared.err.find("others.json.log.jsonl: was written with other dense answers") != std::string::npos);
  CHECK(test::read(program.path("others.json.log.jsonl")) == others);
  // Without --resume no search is thrown away.
  const std::string before = test::read(program.path("wrong.json.log.jsonl"));
  const auto anew = program.run("wrong.json");
  CHECK(anew.status == 1);
  CHECK(anew.err.find("wrong.json.log.jsonl: holds earlier work: go on with it by --resume") != std::string::npos);
  CHECK(test::read(program.path("wrong.json.log.jsonl")) == before);

  // What no outcome depends on may change: nothing is measured again, and only the presets say it.
  const nlohmann::json whole = untimed(program.read("whole.json"));
  REQUIRE(program.run("whole.json", {"--resume", "--min-tokens", "70"}).status == 0);
  CHECK(test::read(program.path("whole.json.log.jsonl")) == log);
  nlohmann::json longer = whole;
  for (auto& preset : longer["presets"]) preset["min_tokens"] = 70;
  CHECK(longer != whole);
  CHECK(untimed(program.read("whole.json")) == longer);

  const auto other = program.run("whole.json", {"--resume", "--prompts-limit", "3"});
  CHECK(other.status == 1);
  CHECK(other.err.find("other settings: ") != std::string::npos);
  CHECK(other.err.find("prompts was 4, is 3") != std::string::npos);
  const auto int8 = program.run("whole.json", {"--resume", "--weights", "int8"});
  CHECK(int8.status == 1);
  CHECK(int8.err.find("other settings: ") != std::string::npos);
  CHECK(test::read(program.path("whole.json.log.jsonl")) == log);
}

TEST_CASE("calibrate: --minutes bounds the search, and one without time goes on later") {
  const CalibrateProgram program;
  REQUIRE(program.run("whole.json").status == 0);
  const auto none = program.run("none.json", {"--minutes", "0"});
  REQUIRE(none.status == 0);
  CHECK(none.err.find("--minutes 0 allowed 4 of 24 runs of a prompt; --resume with more minutes goes on") !=
        std::string::npos);
  const std::string log = test::read(program.path("none.json.log.jsonl"));
  CHECK(std::ranges::count(log, '\n') == 2 + 2 * (2 + 2));  // settings, answers, and each preset on all prompts
  CHECK(program.read("none.json")["presets"].size() == 2);
  const auto later = program.run("none.json", {"--resume"});
  REQUIRE(later.status == 0);
  CHECK(later.err.find("--minutes") == std::string::npos);
  CHECK(untimed(program.read("none.json")) == untimed(program.read("whole.json")));
  // A search that has tried all it can was not ended by time, whatever it has left.
  const auto all = program.run("all.json", {"--runs", "100000", "--prompts-limit", "2"});
  REQUIRE(all.status == 0);
  CHECK(all.err.find("--minutes") == std::string::npos);
  for (const std::string option : {"--minutes", "--runs", "--speedups", "--decode-rows"}) {
    const auto given = program.run("given.json", {"--schedule", "1:0.5", option, "5"});
    CHECK(given.status == 2);
    CHECK(given.err.find("--schedule excludes " + option) != std::string::npos);
  }
}

TEST_CASE("calibrate: options are obeyed") {
  const CalibrateProgram program;
  REQUIRE(program.run("few.json", {"--runs", "3", "--prompts-limit", "2", "--dtype", "bf16"}).status == 0);
  const std::string log = test::read(program.path("few.json.log.jsonl"));
  CHECK(std::ranges::count(log, '\n') <= 2 + 3 + 2);  // of one prompt, and the other one for each preset
  CHECK(log.find("\"dtype\":\"bf16\"") != std::string::npos);
  CHECK(program.read("few.json")["presets"]["1.2x"]["measured"]["held_out"]["prompts"] == 1);
  REQUIRE(program.run("short.json", {"--runs", "2", "--prompt-tokens", "60"}).status == 0);
  CHECK(program.read("short.json")["presets"]["1.2x"] != program.read("few.json")["presets"]["1.2x"]);

  // Of a search, members that are given hold for all presets.
  REQUIRE(program
              .run("shared.json",
                   {"--runs", "3", "--score", "mean:3", "--protect-first", "2", "--protect-last", "5", "--max-revived",
                    "40", "--decode-revived", "3", "--continuations", "0", "--revive-from", "1", "--min-tokens", "70"})
              .status == 0);
  const nlohmann::json shared = program.read("shared.json");
  for (const nlohmann::json& preset : shared["presets"]) {
    CHECK(preset["score"] == "mean:3");
    CHECK(preset["protect_first"] == 2);
    CHECK(preset["protect_last"] == 5);
    CHECK(preset["max_revived"] == 40);
    CHECK(preset["decode_revived"] == 3);
    CHECK(preset["first_revived"] == 32);
    CHECK(preset["continuations"] == 0);
    CHECK(preset["revive_from"] == 1);
    CHECK(preset["min_tokens"] == 70);
  }
  REQUIRE(program.run("first.json", {"--runs", "3", "--first-revived", "7"}).status == 0);
  const nlohmann::json first = program.read("first.json");
  for (const nlohmann::json& preset : first["presets"]) {
    CHECK(preset["max_revived"] == 8);
    CHECK(preset["first_revived"] == 7);
    CHECK(revived_in_a_step(preset) == 3);
    CHECK(preset["min_tokens"] == 384);  // longer than these prompts, which are pruned nevertheless
    CHECK(preset["measured"]["ideal_ttft_speedup"] > 1.1);
  }
  REQUIRE(program.run("rows.json", {"--runs", "3", "--decode-rows", "1"}).status == 0);
  const nlohmann::json rows = program.read("rows.json");
  for (const nlohmann::json& preset : rows["presets"]) CHECK(preset["decode_revived"] == 0);
  const auto both = program.run("both.json", {"--decode-rows", "9", "--decode-revived", "2"});
  CHECK(both.status == 2);
  CHECK(both.err.find("--decode-revived excludes --decode-rows") != std::string::npos);
}

TEST_CASE("calibrate: with --follow-up the second turn's answers are compared") {
  const CalibrateProgram program;
  const std::vector<std::string> given = {"--schedule", "2:0.5", "--decode-revived", "0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), given.begin(), given.end());
    return more;
  };
  REQUIRE(program.run("one.json", with({})).status == 0);
  REQUIRE(program.run("two.json", with({"--follow-up", "why not?"})).status == 0);
  REQUIRE(program.run("same.json", with({"--follow-up", "why not?"})).status == 0);
  const auto measured = [&](const std::string& name) {
    return (*program.read(name)["presets"].begin())["measured"]["held_out"]["kl"].get<double>();
  };
  CHECK(measured("two.json") != measured("one.json"));
  CHECK(measured("two.json") == measured("same.json"));
  CHECK(measured("two.json") > 0);
  CHECK((*program.read("two.json")["presets"].begin())["measured"]["with"]["follow_up"] == "why not?");
  CHECK_FALSE((*program.read("one.json")["presets"].begin())["measured"]["with"].contains("follow_up"));
  const auto too_long = program.run("long.json", with({"--follow-up", std::string(600, 'x')}));
  CHECK(too_long.status == 1);
  CHECK(too_long.err.find("--follow-up has 6") != std::string::npos);
  const auto other = program.run("two.json", with({"--resume"}));
  CHECK(other.status == 1);
  CHECK(other.err.find("two.json.log.jsonl") != std::string::npos);
  const auto long_one = program.run("long.json", with({"--tokens", "300", "--follow-up", "why not?"}));
  CHECK(long_one.status == 1);
  CHECK(long_one.err.find("--tokens 300 is out of range 1 to 2") != std::string::npos);
  CHECK(long_one.err.find("less a prompt and the --follow-up") != std::string::npos);
}

TEST_CASE("calibrate: --help names every option and succeeds") {
  const auto result = CalibrateProgram().run("none.json", {"--help"});
  CHECK(result.status == 0);
  for (const char* option :
       {"--model",       "--tokenizer",      "--data",          "--out",           "--prompts-limit", "--prompt-tokens",
        "--chat",        "--follow-up",      "--schedule",      "--score",         "--protect-first", "--protect-last",
        "--max-revived", "--decode-revived", "--first-revived", "--continuations", "--revive-from",   "--min-tokens",
        "--decode-rows", "--speedups",       "--tokens",        "--runs",          "--resume",        "--dtype",
        "--minutes",     "--threads",        "--weights"}) {
    CAPTURE(option);
    CHECK(result.out.find(option) != std::string::npos);
  }
}

TEST_CASE("calibrate: --help offers the schedules that it takes") {
  std::string help = CalibrateProgram().run("none.json", {"--help"}).out;
  help = std::regex_replace(help, std::regex("\\s+"), " ");
  for (const char* form : {"auto:SPEEDUPx", "dense", "LAYER:KEEP", "@FILE#NAME"}) {
    CHECK(help.find(form) != std::string::npos);
  }
  for (const char* form : {"top-p@", "static@", "paper ("}) CHECK(help.find(form) == std::string::npos);
}

TEST_CASE("calibrate: a wrong schedule or speedup is found before there is a log") {
  const CalibrateProgram program;
  const auto check = [&](const std::vector<std::string>& arguments, const std::string& part) {
    const auto result = program.run("out.json", arguments);
    CAPTURE(result.err);
    CHECK(result.status == 1);
    CHECK(result.err.find(part) != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(program.path("out.json")));
    CHECK_FALSE(std::filesystem::exists(program.path("out.json.log.jsonl")));
  };
  check({"--speedups", "2", "1.5"}, "a speedup of 1.5 is out of range: it must be above 2");
  check({"--speedups", "1.2000001", "1.2"}, "a speedup of 1.2 is out of range: it must be above 1.2000001");
  check({"--runs", "1"}, "--runs 1 is out of range: at least 2, one for each of --speedups");
  check({"--schedule", "@none"}, "none");
  check({"--schedule", "4:2"}, "keep 2");
  check({"--schedule", "99:0.5"}, "layer 99 is out of range");
  check({"--schedule", "auto:9x"}, "--schedule \"auto:9x\": recommended: speedup 9 is out of range 1 to 4");
  check({"--schedule", "auto"}, "the forms are auto:SPEEDUPx, dense, LAYER:KEEP,..., @FILE and @FILE#NAME");
  check({"--score", "mean:0"}, "--score \"mean:0\": AttentionScore: last_queries 0 is out of range, at least 1");
  check({"--schedule", "1:0.5", "--first-revived", "3"}, "first");
  check({"--revive-from", "1"}, "revive_from 1 needs decode_revived");
  check({"--data", program.path("")}, "of --data, and the next run would read it as data");
  for (const char* text : {"wrong", "static@2:0.5", "top-p@2:0.5", "paper"}) {
    check({"--schedule", text}, std::string("schedule '") + text + "'");
  }
}

TEST_CASE("calibrate: speedups that are nearly equal are two presets") {
  const CalibrateProgram program;
  const auto result = program.run("near.json", {"--speedups", "1.2", "1.2000001"});
  CAPTURE(result.err);
  REQUIRE(result.status == 0);
  const nlohmann::json presets = program.read("near.json")["presets"];
  CHECK(presets.size() == 2);
  for (const char* name : {"1.2x", "1.2000001x"}) CHECK(presets.contains(name));
}

TEST_CASE("calibrate: a model that gets another name during the search loses no result") {
  const CalibrateProgram program;
  const std::string log = program.path("out.json.log.jsonl");
  std::thread renaming([&] {
    for (int i = 0; i < 600'000 && test::read(log).empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::filesystem::rename(program.toy().model, program.path("other.bin"));
  });
  const auto result = program.run("out.json");
  renaming.join();
  CAPTURE(result.err);
  CHECK(result.status == 0);
  CHECK(program.read("out.json")["model"] == "toy.bin");
}

TEST_CASE("calibrate: --chat puts prompts in the model's chat template") {
  const CalibrateProgram program;
  const std::filesystem::path model = program.path("model");
  std::filesystem::copy(test::embedded_model, model);
  program.write(
      "model/tokenizer_config.json",
      nlohmann::json{{"bos_token", "<s>"}, {"chat_template", "{{ bos_token }}" + std::string(test::chatml)}}.dump());
  const std::string prompt = "Who made the red bowl?";
  const std::string whole = open_chat_template(model).text(prompt);
  REQUIRE(whole.starts_with("<s>"));
  const std::string wrapped = whole.substr(3);  // without --chat BOS goes before a prompt anyway
  const auto fingerprint = [&](const std::string& out, const std::string& text, std::vector<std::string> more) {
    const std::string line = nlohmann::json{{"prompt", text}}.dump() + "\n";
    more.insert(more.end(), {"--model", model, "--tokenizer", model, "--data", program.write(out + "l", line + line),
                             "--schedule", "dense"});
    const auto result = program.run(out, more);
    CAPTURE(result.err);
    REQUIRE(result.status == 0);
    const nlohmann::json preset = program.read(out)["presets"].front();
    CHECK(preset["measured"]["with"]["chat"] == (out == "chat.json"));
    const std::string log = test::read(program.path(out + ".log.jsonl"));
    return nlohmann::json::parse(log.substr(0, log.find('\n'))).at("settings").at("prompts_fingerprint");
  };
  const auto chat = fingerprint("chat.json", prompt, {"--chat"});
  CHECK(chat == fingerprint("wrapped.json", wrapped, {}));
  CHECK(chat != fingerprint("plain.json", prompt, {}));
}

TEST_CASE("calibrate: a preset that is given is measured, and nothing is searched") {
  const CalibrateProgram program;
  REQUIRE(program.run("searched.json").status == 0);
  const nlohmann::json searched = program.read("searched.json")["presets"]["1.5x"];
  std::string found("@");  // not "@" + ...: g++ 12 warns of an overlap that is none
  found.append(program.path("searched.json")).append("#1.5x");
  REQUIRE(program.run("given.json", {"--schedule", found}).status == 0);
  const nlohmann::json given = program.read("given.json");
  REQUIRE(given["presets"].size() == 1);
  nlohmann::json measured = given["presets"].front();
  CHECK(measured["schedule"] == searched["schedule"]);
  CHECK(measured["score"] == searched["score"]);
  CHECK(measured["min_tokens"] == 384);
  CHECK(measured["measured"]["held_out"] == searched["measured"]["held_out"]);
  CHECK(measured["measured"]["searched"] == searched["measured"]["searched"]);

  REQUIRE(program
              .run("list.json", {"--schedule", "1:0.5", "--score", "max:2", "--protect-last", "3", "--prompt-tokens",
                                 "40", "--dtype", "bf16", "--weights", "int8"})
              .status == 0);
  const nlohmann::json list = program.read("list.json")["presets"].front();
  CHECK(list["measured"]["with"] ==
        nlohmann::json{{"prompt_tokens", 40}, {"chat", false}, {"dtype", "bf16"}, {"weights", "int8"}});
  CHECK(list["schedule"] == "1:0.5");
  CHECK(list["score"] == "max:2");
  CHECK(list["protect_last"] == 3);
  CHECK_FALSE(list.contains("min_tokens"));
  const std::string log = test::read(program.path("list.json.log.jsonl"));
  CHECK(std::ranges::count(log, '\n') == 2 + 4);
  const auto refused = program.run("paper.json", {"--schedule", "paper"});
  CHECK(refused.status == 1);
  CHECK(refused.err.find("schedule 'paper': 'paper' is not LAYER:KEEP") != std::string::npos);
}

TEST_CASE("calibrate: prompts longer than the model can run lose their middle") {
  const CalibrateProgram program;
  const std::string line = nlohmann::json{{"prompt", std::string(3000, 'a') + std::string(3000, 'b')}}.dump() + "\n";
  const std::string prompts = program.write("long.jsonl", line + line);
  const auto result = program.run("long.json", {"--data", prompts, "--runs", "2"});
  CAPTURE(result.err);
  CHECK(result.status == 0);
}

TEST_CASE("calibrate: mistakes are errors that name them, and write no file") {
  const CalibrateProgram program;
  const auto check = [&](const std::vector<std::string>& arguments, int status,
                         std::initializer_list<const char*> parts) {
    const auto result = program.run("out.json", arguments);
    CAPTURE(result.err);
    CHECK(result.status == status);
    for (const char* part : parts) CHECK(result.err.find(part) != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(program.path("out.json")));
    CHECK_FALSE(std::filesystem::exists(program.path("out.json.part")));
  };
  check({"--runs", "0"}, 2, {"--runs"});
  check({"--runs", "1"}, 1, {"--runs 1 is out of range: at least 2, one for each of --speedups"});
  check({"--max-revived", "3000000000"}, 2, {"--max-revived", "from 0 to 2147483647"});
  check({"--chat"}, 1, {"tokenizer_config.json"});
  check({"--score", "most"}, 1, {"score 'most'"});
  check({"--prompts-limit", "0"}, 2, {"--prompts-limit", "at least 1"});
  check({"--dtype", "f64"}, 2, {"--dtype"});
  check({"--dtype", "f16"}, 1, {"--dtype f16 is not one of f32 and bf16, the types on the CPU"});
#ifndef LLAMA_HAS_CUDA
  check({"--device", "cuda"}, 1, {"--device cuda: this build has no CUDA"});
#endif
  check({"--unknown"}, 2, {"--unknown"});
  check({"--speedups", "1"}, 2, {"--speedups", "from 1.01 to 20"});
  check({"--prompts-limit", "1"}, 1, {"has 1 prompt to use, at least 2 are needed: half is held out"});
  check({"--tokens", "511"}, 1, {"--tokens 511", "1 to 510"});
  check({"--data", program.path("none.jsonl")}, 1, {"none.jsonl", "No such file"});
  check({"--data", program.write("bad.jsonl", "{}")}, 1, {"bad.jsonl:1"});
  const auto far = program.run("far.json", {"--speedups", "19"});
  CHECK(far.status == 1);
  CHECK(far.err.find("a speedup of 19 is out of reach with a model of") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(program.path("far.json")));
  CHECK_FALSE(std::filesystem::exists(program.path("far.json.log.jsonl")));  // it would refuse the next start
  const auto result = program.run("none/out.json");
  CHECK(result.status == 1);
  CHECK(result.err.find("none/out.json") != std::string::npos);
}
