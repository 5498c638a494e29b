#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "examples/llama/kernels/cpu/isa.hpp"
#include "examples/llama/model/generate_program.hpp"
#include "examples/llama/model/relative_error.hpp"
#include "examples/llama/tokenizer/chat_template.hpp"
#include "tests/examples/llama/chatml.hpp"
#include "tests/support/source_folder.hpp"

using namespace llama;
using Json = nlohmann::json;

namespace {

constexpr int prompt_tokens = 40;
constexpr int layers = 4;
constexpr int vocabulary = 97;
constexpr int hidden_size = 32;
constexpr int intermediate_size = 64;  // heads · head_dim and KV heads · head_dim equal `hidden_size`

Json read_json(const std::string& path) { return Json::parse(test::read(path)); }

/// What --json says of a run of the small model.
Json report(std::vector<std::string> arguments) {
  const test::GenerateProgram program;
  arguments.insert(arguments.end(), {"--json", program.path("report.json")});
  const auto result = program.run_ids(arguments);
  CAPTURE(result.err);
  REQUIRE(result.status == 0);
  CHECK(program.files() == std::set<std::string>{"ids", "report.json"});
  return read_json(program.path("report.json"));
}

/// The trace of a run of the small model with the default of `--max-tokens`.
Json trace(std::vector<std::string> arguments) {
  const test::GenerateProgram program;
  arguments.insert(arguments.end(), {"--trace", program.path("trace.json")});
  REQUIRE(program.run_ids(arguments).status == 0);
  return read_json(program.path("trace.json"));
}

void check_run(const Json& run, int tokens) {
  for (const char* field : {"ttft_ms", "decode_ms_per_token"}) CHECK(run.at(field).get<double>() > 0);
  CHECK(run.at("tokens").size() == static_cast<std::size_t>(tokens));
  CHECK(run.at("text") == "");  // there is no tokenizer
  const double percent = run.at("prompt_computed_percent");
  CHECK(percent > 0);
  CHECK(percent <= 100);
  CHECK(run.at("revived_tokens").is_number_unsigned());
  CHECK(run.at("aux_bytes_peak").is_number_unsigned());
  CHECK(run.at("kv_bytes") == 2 * layers * hidden_size * 4 * (prompt_tokens + tokens));
  const Json& list = run.at("layers");
  REQUIRE(list.size() == layers);
  CHECK(list[0].at("active") == prompt_tokens);
  for (std::size_t l = 0; l < layers; ++l) {
    CHECK(list[l].at("computed") == list[l].at("active"));  // in a prefill all active tokens are new
    CHECK(list[l].at("kept") == (l + 1 < layers ? list[l + 1].at("active") : list[l].at("active")));
  }
}

/// Floating-point operations of a prefill, two for each multiply-add, from the rows that each layer computed and kept.
double operations(const Json& list) {
  double sum = 0;
  for (std::size_t l = 0; l < layers; ++l) {
    const bool last = l + 1 == layers;
    const double rows = list[l].at("computed");
    const double queries = last ? 1 : rows;  // of the last layer only the last row's output is needed
    const double ffn_rows = last ? 1 : list[l].at("kept").get<double>();  // that of pruned rows is deferred
    const double visible_keys = last ? rows : rows * (rows + 1) / 2;
    sum += 2 * rows * hidden_size * (2 * hidden_size);          // K and V
    sum += 2 * queries * hidden_size * (2 * hidden_size);       // Q and the output projection
    sum += 2 * visible_keys * (2 * hidden_size);                // scores and values
    sum += 2 * ffn_rows * hidden_size * 3 * intermediate_size;  // gate, up and down
  }
  return sum;
}

}  // namespace

TEST_CASE("--json has the figures of a run, and they fit together") {
  const Json run = report({"--schedule", "1:0.5,3:0.5", "--max-tokens", "20"});
  check_run(run, 20);
  CHECK(run.at("prompt_tokens") == prompt_tokens);
  CHECK(run.at("schedule") == "1:0.5,3:0.5");
  CHECK(run.at("score") == "last");
  CHECK(run.at("protect_first") == 0);
  CHECK(run.at("protect_last") == 1);
  CHECK_FALSE(run.contains("preset"));
  CHECK(run.at("dtype") == "f32");
  CHECK(run.at("isa") == best_isa());
  CHECK(run.at("threads") == 1);
  CHECK(run.at("layers")[1].at("active") == 20);
  CHECK(run.at("layers")[3].at("active") == 10);
  CHECK(run.at("revived_tokens") > 0);
  CHECK(run.at("aux_bytes_peak") > 0);
  // One token needs the prefill only.
  const Json first = report({"--schedule", "1:0.5,3:0.5", "--max-tokens", "1"});
  CHECK(first.at("prompt_computed_percent").get<double>() == doctest::Approx(100 * (40 + 20 + 20 + 10) / 160.0));
  CHECK(first.at("aux_bytes_peak") == 30 * hidden_size * 4);
  CHECK(first.at("revived_tokens") == 0);
  CHECK(first.at("decode_ms_per_token") == 0);
  CHECK(first.at("tokens")[0] == run.at("tokens")[0]);
}

/// The times between tokens that belong to `step_ms`, the obvious way.
void check_decode_times(const Json& run) {
  const auto steps = run.at("step_ms").get<std::vector<double>>();
  REQUIRE(steps.size() == run.at("tokens").size());
  const Json& times = run.at("decode_ms");
  const auto mean = [&](std::size_t first, std::size_t last) {
    double sum = 0;
    for (std::size_t token = first; token <= last; ++token) sum += steps[token - 1];
    return doctest::Approx(sum / static_cast<double>(last - first + 1)).epsilon(1e-9);
  };
  CHECK(times.at("second") == steps[1]);
  CHECK(times.at("third_to_9th").get<double>() == mean(3, 9));
  CHECK(times.at("later").get<double>() == mean(10, steps.size()));
  // Half of the steps, and 99 of 100 of them, took no longer; one fewer would be too few.
  for (const auto& [name, share] : {std::pair("p50", 0.5), {"p99", 0.99}}) {
    const auto time = times.at(name).get<double>();
    std::size_t below = 0, within = 0;
    for (std::size_t i = 1; i < steps.size(); ++i) {
      below += steps[i] < time;
      within += steps[i] <= time;
    }
    const double needed = share * static_cast<double>(steps.size() - 1);
    CHECK(static_cast<double>(within) >= needed);
    CHECK(static_cast<double>(below) < needed);
  }
}

TEST_CASE("times between tokens, and from where on the lazy run is behind") {
  const Json both = report({"--schedule", "1:0.3", "--max-tokens", "24", "--ignore-stop", "--compare"});
  check_decode_times(both.at("dense"));
  check_decode_times(both.at("lazy"));
  double dense = 0, lazy = 0;
  std::size_t behind = 0;
  for (std::size_t count = 1; count <= 24 && behind == 0; ++count) {
    dense += both.at("dense").at("step_ms")[count - 1].get<double>();
    lazy += both.at("lazy").at("step_ms")[count - 1].get<double>();
    if (lazy > dense) behind = count;
  }
  CHECK(both.at("behind_dense_from") == (behind == 0 ? Json() : Json(behind)));
  const Json one = report({"--max-tokens", "1"});
  for (const char* time : {"second", "third_to_9th", "later", "p50", "p99"})
    CHECK(one.at("decode_ms").at(time).is_null());
  const Json five = report({"--max-tokens", "5", "--ignore-stop"});
  CHECK(five.at("decode_ms").at("third_to_9th") > 0);
  CHECK(five.at("decode_ms").at("later").is_null());
}

TEST_CASE("--context leaves out the middle of a longer prompt") {
  const auto tokens = [](const char* context) {
    return report({"--max-tokens", "4", "--context", context}).at("prompt_tokens").get<int>();
  };
  CHECK(tokens("44") == 40);
  CHECK(tokens("43") == 38);
  CHECK(tokens("6") == 2);
}

TEST_CASE("numbers of tokens that no model has are refused with the range") {
  const test::GenerateProgram program;
  for (const char* option : {"--max-tokens", "--context"}) {
    for (const char* tokens : {"1073741825", "9223372036854775806", "9223372036854775807"}) {
      const auto result = program.run_ids({option, tokens});
      CHECK(result.status == 2);
      CHECK(result.err.starts_with(fmt::format("{}: {} is not a whole number from 1 to 1073741824\n", option, tokens)));
    }
  }
  const auto result = program.run_ids({"--context", "1", "--max-tokens", "1073741824"});
  CHECK(result.status == 1);
  CHECK(result.err.find("--context 1 is out of range: at least 1073741826, 2 more than --max-tokens") !=
        std::string::npos);
}

TEST_CASE("outputs that cannot be written are all named") {
  const test::GenerateProgram program;
  const std::string command = "ulimit -f 2; exec \"$@\"";  // stands for a full disk; clang's OpenMP needs 1024 bytes
  const auto result =
      test::run_process("/bin/sh", {"-c", command, "sh", LAZYLLM_GENERATE, "--model", test::small_model, "--token-ids",
                                    program.path("ids"), "--threads", "1", "--json", program.path("j"), "--logits",
                                    program.path("l"), "--report", program.path("r")});
  CHECK(result.status == 1);
  for (const char* name : {"j", "l", "r"}) {
    CAPTURE(name);
    CHECK(result.err.find(program.path(name) + ": the file cannot be written: File too large") != std::string::npos);
  }
}

TEST_CASE("--compare reports dense and lazy and how they relate") {
  for (const char* schedule : {"paper", "1:0.3,2:0.3", "1:0.9"}) {
    CAPTURE(schedule);
    const Json both = report({"--schedule", schedule, "--max-tokens", "12", "--compare", "--repeats", "2"});
    const Json& dense = both.at("dense");
    const Json& lazy = both.at("lazy");
    check_run(dense, 12);
    check_run(lazy, 12);
    CHECK(both.at("prompt_tokens") == prompt_tokens);
    CHECK(both.at("repeats") == 2);
    CHECK(dense.at("prompt_computed_percent") == 100);
    CHECK(dense.at("revived_tokens") == 0);
    CHECK(dense.at("aux_bytes_peak") == 0);
    for (const Json& layer : dense.at("layers")) CHECK(layer.at("active") == prompt_tokens);

    std::size_t equal = 0;
    while (equal < 12 && dense.at("tokens")[equal] == lazy.at("tokens")[equal]) ++equal;
    CHECK(both.at("equal_tokens") == equal);
    CHECK(both.at("first_token_equal") == (equal > 0));
    CHECK(both.at("ideal_ttft_speedup").get<double>() ==
          doctest::Approx(operations(dense.at("layers")) / operations(lazy.at("layers"))).epsilon(1e-9));
    CHECK(both.at("ideal_ttft_speedup") > 1);
    CHECK(both.at("ttft_speedup") > 0);
    CHECK(both.at("generation_speedup") > 0);
    // Each run is what the program gives when it does only that.
    CHECK(report({"--schedule", schedule, "--max-tokens", "12"}).at("tokens") == lazy.at("tokens"));
    CHECK(report({"--schedule", "dense", "--max-tokens", "12"}).at("tokens") == dense.at("tokens"));
  }
  const Json once = report({"--schedule", "dense", "--max-tokens", "5", "--compare", "--repeats", "1"});
  CHECK(once.at("equal_tokens") == 5);
  CHECK(once.at("ideal_ttft_speedup") == 1);
  CHECK(once.at("ttft_speedup").get<double>() ==
        doctest::Approx(once.at("dense").at("ttft_ms").get<double>() / once.at("lazy").at("ttft_ms").get<double>()));
}

TEST_CASE("--trace has the active positions, from which the figures of --json follow") {
  const test::GenerateProgram program;
  REQUIRE(program
              .run_ids({"--schedule", "1:0.6,2:0.5,3:0.5", "--max-tokens", "30", "--json", program.path("j"), "--trace",
                        program.path("t")})
              .status == 0);
  const Json run = read_json(program.path("j"));
  const Json steps = read_json(program.path("t"));
  REQUIRE(steps.size() == 30);

  std::vector<std::size_t> depth;
  std::size_t revived = 0;
  std::size_t max_parked = 0;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    CHECK(steps[s].at("new_tokens") == (s == 0 ? prompt_tokens : 1));
    depth.resize(depth.size() + steps[s].at("new_tokens").get<std::size_t>());
    std::set<std::size_t> rows_before;
    REQUIRE(steps[s].at("active").size() == layers);
    for (std::size_t l = 0; l < layers; ++l) {
      const std::vector<std::size_t> active = steps[s].at("active")[l];
      CHECK(std::ranges::is_sorted(active));
      CHECK(active.back() == depth.size() - 1);
      if (s == 0) CHECK(run.at("layers")[l].at("active") == active.size());
      std::set<std::size_t> rows;
      for (const std::size_t position : active) {
        if (depth[position] == l) rows.insert(position);
      }
      for (const std::size_t position : rows) {
        revived += l > 0 && !rows_before.contains(position) ? 1 : 0;
        ++depth[position];
      }
      rows_before = rows;
    }
    const auto parked = static_cast<std::size_t>(std::ranges::count_if(depth, [](auto d) { return d < layers; }));
    max_parked = std::max(max_parked, parked);
  }
  std::size_t computed = 0;
  for (std::size_t i = 0; i < prompt_tokens; ++i) computed += depth[i];
  CHECK(run.at("revived_tokens") == revived);
  CHECK(revived > 0);
  CHECK(run.at("aux_bytes_peak") == max_parked * hidden_size * 4);
  CHECK(run.at("prompt_computed_percent").get<double>() ==
        doctest::Approx(100.0 * static_cast<double>(computed) / (prompt_tokens * layers)));
}

TEST_CASE("--logits has one row for each token, whose largest entry is the token") {
  for (const bool compare : {false, true}) {
    const test::GenerateProgram program;
    std::vector<std::string> arguments = {"--schedule", "1:0.5",           "--max-tokens", "9",
                                          "--json",     program.path("j"), "--logits",     program.path("logits")};
    if (compare) arguments.push_back("--compare");
    REQUIRE(program.run_ids(arguments).status == 0);
    const std::string bytes = test::read(program.path("logits"));
    REQUIRE(bytes.size() == 9 * vocabulary * sizeof(float));
    std::vector<float> logits(9 * vocabulary);
    std::memcpy(logits.data(), bytes.data(), bytes.size());
    const Json run = read_json(program.path("j"));
    const Json& tokens = compare ? run.at("lazy").at("tokens") : run.at("tokens");
    for (std::size_t step = 0; step < 9; ++step) {
      const auto row = logits.begin() + static_cast<std::ptrdiff_t>(step * vocabulary);
      CHECK(tokens[step] == std::max_element(row, row + vocabulary) - row);
    }
  }
}

TEST_CASE("without a tokenizer the token ids go to standard output, and the figures elsewhere") {
  const test::GenerateProgram program;
  const auto result = program.run_ids({"--max-tokens", "6", "--json", program.path("j")});
  std::string ids;
  const Json run = read_json(program.path("j"));
  for (const int token : run.at("tokens")) ids += std::to_string(token) + ' ';
  CHECK(result.out == ids + "\n");
  CHECK(result.err.find("TTFT") != std::string::npos);
  CHECK(result.err.find('\r') == std::string::npos);  // no progress line outside a terminal
}

TEST_CASE("--token-ids reads JSON, too") {
  const test::GenerateProgram program;
  std::string list = "[";
  for (const char c : test::read(program.path("ids"))) list += c == ' ' ? ',' : c;
  list.back() = ']';
  const std::string json = program.write("json", list);
  const auto result = program.run({"--model", test::small_model, "--token-ids", json, "--max-tokens", "6"});
  CHECK(result.status == 0);
  CHECK(result.out == program.run_ids({"--max-tokens", "6"}).out);
}

TEST_CASE("--dtype bf16 halves the caches and stays near f32") {
  const Json f32 = report({"--max-tokens", "10", "--schedule", "1:0.5"});
  const Json bf16 = report({"--max-tokens", "10", "--schedule", "1:0.5", "--dtype", "bf16"});
  CHECK(bf16.at("dtype") == "bf16");
  CHECK(2 * bf16.at("kv_bytes").get<int>() == f32.at("kv_bytes"));
  CHECK(report({"--max-tokens", "1", "--schedule", "1:0.5", "--dtype", "bf16"}).at("aux_bytes_peak") ==
        20 * hidden_size * 2);
  CHECK(bf16.at("tokens")[0] == f32.at("tokens")[0]);
}

TEST_CASE("--weights int8 gives other logits, near those of the usual weights, and says so") {
  const test::GenerateProgram program;
  const auto run = [&](std::vector<std::string> arguments, const std::string& weights) {
    arguments.insert(arguments.end(), {"--weights", weights, "--max-tokens", "6", "--json", program.path("json"),
                                       "--logits", program.path("logits")});
    const auto result = program.run_ids(arguments);
    CAPTURE(result.err);
    REQUIRE(result.status == 0);
    const std::string bytes = test::read(program.path("logits"));
    std::vector<float> logits(6 * vocabulary);
    REQUIRE(bytes.size() == logits.size() * sizeof(float));
    std::memcpy(logits.data(), bytes.data(), bytes.size());
    return std::pair(read_json(program.path("json")), logits);
  };
  const std::vector<std::vector<std::string>> schedules{{"--schedule", "dense"}, {"--schedule", "2:0.5"}};
  for (const auto& schedule : schedules) {
    CAPTURE(schedule);
    const auto usual = run(schedule, "dtype"), int8 = run(schedule, "int8");
    CHECK_FALSE(usual.first.contains("weights"));
    CHECK(int8.first.at("weights") == "int8");
    CHECK(int8.first.at("dtype") == "f32");
    const bool lazy = schedule[1] != "dense";
    CHECK((usual.first.at("revived_tokens") > 0) == lazy);
    CHECK((int8.first.at("revived_tokens") > 0) == lazy);
    const Json tokens = usual.first.at("tokens");
    std::ptrdiff_t same = 1;  // rows until the runs had other tokens before them
    while (same < 6 &&
           tokens[static_cast<std::size_t>(same - 1)] == int8.first.at("tokens")[static_cast<std::size_t>(same - 1)]) {
      ++same;
    }
    CHECK(same >= 2);  // a decode step, whose few rows have a kernel of their own, among them
    for (std::ptrdiff_t row = 0; row < same; ++row) {
      CAPTURE(row);
      const std::span<const float> expected(usual.second.data() + row * vocabulary, vocabulary);
      const std::span<const float> actual(int8.second.data() + row * vocabulary, vocabulary);
      const float error = test::relative_error(actual, expected);
      CHECK(error > 1e-3F);
      CHECK(error < 0.3F);  // found: up to 0.19; of an unrelated row 1 and more
    }
  }
}

TEST_CASE("draws are the same again for a seed, and top-p near 0 is greedy") {
  const auto tokens = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--max-tokens", "12"});
    return report(arguments).at("tokens");
  };
  const Json first = tokens({"--temperature", "1.5", "--seed", "3"});
  CHECK(tokens({"--temperature", "1.5", "--seed", "3"}) == first);
  CHECK(tokens({"--temperature", "1.5", "--seed", "4"}) != first);
  CHECK(tokens({"--temperature", "1.5", "--seed", "3", "--top-p", "1e-6"}) == tokens({}));
}

TEST_CASE("--schedule, --score, --protect-first and --protect-last decide which positions stay") {
  const auto prefill = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--max-tokens", "1"});
    return trace(arguments)[0].at("active");
  };
  const auto sizes = [](const Json& active) {
    std::vector<std::size_t> result;
    for (const Json& layer : active) result.push_back(layer.size());
    return result;
  };
  using Sizes = std::vector<std::size_t>;
  CHECK(sizes(prefill({"--schedule", "paper"})) == Sizes{40, 28, 20, 14});  // 70 % after layers 1, 2 and 3
  CHECK(sizes(prefill({})) == Sizes{40, 40, 40, 40});                       // auto:1.5x leaves short prompts alone
  CHECK(sizes(prefill({"--min-tokens", "40"})) == Sizes{40, 36, 36, 36});   // and protects 4 + 32
  CHECK(sizes(prefill({"--schedule", "dense"})) == Sizes{40, 40, 40, 40});
  CHECK(sizes(prefill({"--schedule", "2:0.25"})) == Sizes{40, 40, 10, 10});
  CHECK(sizes(prefill({"--schedule", "static@2:0.25"})) == Sizes{40, 40, 10, 10});
  const std::size_t mass = prefill({"--schedule", "top-p@2:0.5"})[2].size();
  CHECK(mass < 20);  // the highest half of the attention is on fewer than half of the tokens
  CHECK(mass > 1);

  const Json last = prefill({"--schedule", "2:0.25"});
  CHECK(prefill({"--schedule", "2:0.25", "--score", "mean:8+pool:5"}) != last);
  CHECK(prefill({"--schedule", "2:0.25", "--score", "last+layers"}) != last);
  const Json guarded = prefill({"--schedule", "2:0.25", "--protect-first", "4", "--protect-last", "5"});
  CHECK(guarded[2].size() == 10);
  for (const int position : {0, 1, 2, 3, 35, 36, 37, 38, 39}) {
    CHECK(std::ranges::find(guarded[2], Json(position)) != guarded[2].end());
  }
  const Json many = prefill({"--schedule", "2:0.25", "--protect-last", "1000000"});
  CHECK(many[2].size() == 40);

  const Json revived = trace({"--schedule", "2:0.25", "--max-tokens", "12"});
  const Json pinned = trace({"--schedule", "static@2:0.25", "--max-tokens", "12"});
  for (std::size_t s = 1; s < pinned.size(); ++s) {
    CHECK(pinned[s].at("active")[2].size() == 10 + s);  // the ten of the prompt and all that were generated
    CHECK(revived[s].at("active")[2].size() == (40 + s + 3) / 4);
  }
}

TEST_CASE("a prompt that is too short to be pruned is said to be") {
  const test::GenerateProgram program;
  const std::string said = "a prompt of 40 tokens is not pruned: --min-tokens is 384\n";
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--compare"}}) {
    std::vector<std::string> arguments = {"--max-tokens", "2", "--schedule", "auto:2x"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    CHECK(program.run_ids(arguments).err.find(said) != std::string::npos);
    arguments.insert(arguments.end(), {"--min-tokens", "40"});
    CHECK(program.run_ids(arguments).err.find("is not pruned") == std::string::npos);
  }
  CHECK(program.run_ids({"--schedule", "auto:1x", "--max-tokens", "1"}).err.find("is not pruned") == std::string::npos);
}

TEST_CASE("--schedule @FILE prunes as the file's preset says, and options win over it") {
  const test::GenerateProgram program;
  const std::string path = program.write("schedules.json", R"({"format": 1, "layers": 4, "default": "5%", "presets": {
      "5%": {"schedule": "1:0.25,3:0.5", "score": "mean:8", "protect_first": 3, "protect_last": 4},
      "10%": {"schedule": "1:0.1"}}})");
  const std::string file = fmt::format("@{}", path);
  const auto logits = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--logits", program.path("logits"), "--max-tokens", "4"});
    CHECK(program.run_ids(arguments).status == 0);
    return test::read(program.path("logits"));
  };
  const std::string preset = logits({"--schedule", file});
  CHECK(preset ==
        logits({"--schedule", "1:0.25,3:0.5", "--score", "mean:8", "--protect-first", "3", "--protect-last", "4"}));
  CHECK(preset != logits({"--schedule", file, "--score", "last"}));
  CHECK(logits({"--schedule", file + "#10%"}) == logits({"--schedule", "1:0.1"}));
  const Json run = report({"--schedule", file, "--protect-last", "6"});
  CHECK(run.at("preset") == file);
  CHECK(run.at("schedule") == "1:0.25,3:0.5");
  CHECK(run.at("score") == "mean:8");
  CHECK(run.at("protect_first") == 3);
  CHECK(run.at("protect_last") == 6);
  const auto missing = program.run_ids({"--schedule", file + "#2%"});
  CHECK(missing.status == 1);
  CHECK(missing.err.find("no preset \"2%\"; there are \"10%\", \"5%\"") != std::string::npos);
}

TEST_CASE("of an option that is given again, the last value counts, in groups of options too") {
  const test::GenerateProgram program;
  const auto once = program.run_ids({"--max-tokens", "7", "--dtype", "f32"});
  REQUIRE(once.status == 0);
  const auto again = program.run_ids({"--max-tokens", "3", "--dtype", "bf16", "--token-ids", program.path("ids"),
                                      "--max-tokens", "7", "--dtype", "f32"});
  CHECK(again.status == 0);
  CHECK(again.out == once.out);
}

TEST_CASE("--threads does not change what is generated") {
  const Json one = report({"--max-tokens", "3", "--schedule", "1:0.5"});
  const Json two = report({"--max-tokens", "3", "--schedule", "1:0.5", "--threads", "2"});
  CHECK(two.at("threads") == 2);
  CHECK(two.at("tokens") == one.at("tokens"));
}

TEST_CASE("--chat puts the prompt in the model's chat template") {
  const test::GenerateProgram program;
  const std::filesystem::path model = program.path("model");
  std::filesystem::copy(lazyllm::test::source_folder() / "examples/models/tiny", model);
  std::ofstream(model / "tokenizer_config.json")
      << Json{{"chat_template", test::chatml}, {"bos_token", nullptr}, {"eos_token", nullptr}};
  const auto ids = open_chat_template(model).encode(*open_tokenizer(model), "Who made the red bowl?");
  std::string text;
  for (const TokenId id : ids) text += std::to_string(id) + ' ';
  program.write("chat", text);
  const auto tokens = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--model", model, "--max-tokens", "4", "--json", program.path("json")});
    const auto result = program.run(arguments);
    CAPTURE(result.err);
    REQUIRE(result.status == 0);
    const Json report = read_json(program.path("json"));
    return std::pair(report.at("prompt_tokens").get<std::size_t>(), report.at("tokens"));
  };
  const auto chat = tokens({"--prompt", "Who made the red bowl?", "--chat"});
  CHECK(chat.first == ids.size());
  CHECK(chat == tokens({"--token-ids", program.path("chat")}));
  CHECK(chat.first > tokens({"--prompt", "Who made the red bowl?"}).first);
}

TEST_CASE("--help names every option and succeeds") {
  const auto result = test::GenerateProgram().run({"--help"});
  CHECK(result.status == 0);
  for (const char* option :
       {"--model",         "--tokenizer",     "--prompt",        "--prompt-file",  "--token-ids",   "--chat",
        "--schedule",      "--score",         "--protect-first", "--protect-last", "--max-revived", "--decode-revived",
        "--first-revived", "--continuations", "--revive-from",   "--min-tokens",   "--max-tokens",  "--context",
        "--dtype",         "--weights",       "--threads",       "--temperature",  "--top-p",       "--seed",
        "--compare",       "--repeats",       "--json",          "--trace",        "--logits",      "--report"}) {
    CHECK(result.out.find(option) != std::string::npos);
  }
}

TEST_CASE("stories260K: text from --prompt and --prompt-file streams to standard output") {
  const auto folder = test::real_input("stories260K");
  if (!std::filesystem::exists(folder)) {
    MESSAGE("skipped: the model stories260K is absent");
    return;
  }
  const test::GenerateProgram program;
  const std::string expected = test::read(folder / "expected.txt");
  const std::string prompt = "Once upon a time";
  std::vector<std::string> arguments = {
      "--model",    folder / "stories260K.bin", "--tokenizer", folder / "tok512.bin", "--max-tokens", "252",
      "--schedule", "1:1,2:1,3:1,4:1"};
  for (const auto& [option, value] :
       {std::pair<std::string, std::string>{"--prompt", prompt}, {"--prompt-file", program.write("prompt", prompt)}}) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {option, value, "--json", program.path("j")});
    const auto result = program.run(all);
    CHECK(prompt + result.out == expected);
    CHECK(prompt + read_json(program.path("j")).at("text").get<std::string>() + "\n" == expected);
  }
  arguments.insert(arguments.end(), {"--prompt", prompt, "--compare", "--repeats", "1"});
  const auto result = program.run(arguments);
  const std::string answer = expected.substr(prompt.size());
  CHECK(result.out.find("dense: " + answer) != std::string::npos);
  CHECK(result.out.find("lazy:  " + answer) != std::string::npos);
  CHECK(result.out.find("equal tokens: the first 252 of 252") != std::string::npos);
}
