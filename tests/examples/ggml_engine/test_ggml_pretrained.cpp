// SmolLM2 on LongBench. One prompt; LAZYLLM_TEST_RUNS=10 takes ten.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "examples/ggml_engine/dense_engine.hpp"
#include "examples/ggml_engine/lazy_engine.hpp"
#include "examples/ggml_engine/llama_cpp.hpp"
#include "examples/llama/model/any_model.hpp"
#include "examples/llama/program/cut_middle.hpp"
#include "tests/examples/ggml_engine/gguf_file.hpp"
#include "tests/examples/llama/files.hpp"
#include "tests/examples/llama/process.hpp"
#include "tests/support/runs.hpp"

using namespace ggml_engine;
using llama::test::cached;

namespace {

const llama::test::NeedsInput model(std::filesystem::exists(cached("smollm2.gguf")),
                                    "smollm2.gguf in the cache, which examples/models/fetch.sh fetches");

constexpr Index prompt_tokens = 2000, steps = 6;
const Room room{.context = prompt_tokens + steps, .threads = 2};

/// Prompts of `prompt_tokens` tokens, each of another data set; none if the data or the model is absent.
std::vector<std::vector<std::int32_t>> prompts() {
  if (!std::filesystem::exists(cached("smollm2.gguf"))) return {};
  log_errors_only();
  const Vocabulary vocabulary(cached("smollm2.gguf"));
  std::vector<std::vector<std::int32_t>> all;
  for (const char* name : {"hotpotqa", "gov_report", "lcc", "qasper", "2wikimqa", "multi_news", "trec", "samsum",
                           "narrativeqa", "musique"}) {
    std::ifstream file(llama::test::real_input(fmt::format("longbench/{}.jsonl", name)));
    std::string line;
    if (!std::getline(file, line)) return {};
    auto tokens = vocabulary.tokens(vocabulary.chat(nlohmann::json::parse(line).at("prompt")));
    all.push_back(llama::cut_middle(std::move(tokens), prompt_tokens));
  }
  all.resize(std::min<std::size_t>(all.size(), static_cast<std::size_t>(lazyllm::test::runs(1))));
  return all;
}

std::int32_t best(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

/// Kullback-Leibler divergence of what `logits` mean from what `dense` ones do, in nats.
double divergence(std::span<const float> dense, std::span<const float> logits) {
  const auto log_sum = [](std::span<const float> values) {
    const double highest = std::ranges::max(values);
    double sum = 0;
    for (const float value : values) sum += std::exp(value - highest);
    return highest + std::log(sum);
  };
  const double dense_sum = log_sum(dense), sum = log_sum(logits);
  double result = 0;
  for (std::size_t i = 0; i < dense.size(); ++i) {
    result += std::exp(dense[i] - dense_sum) * ((dense[i] - dense_sum) - (logits[i] - sum));
  }
  return result;
}

/// As in run.sh, but prunes more.
lazyllm::Preset preset() {
  lazyllm::Preset preset = lazyllm::recommended(30, 2.5);
  preset.decode_revived = 0;
  return preset;
}

}  // namespace

TEST_CASE("dense: greedy tokens equal llama.cpp's") {
  const auto all = prompts();
  if (all.empty()) {
    MESSAGE("skipped: no smollm2.gguf in the cache, or no LongBench");
    return;
  }
  const std::string path = cached("smollm2.gguf");
  const Model model(path);
  DenseEngine engine(model, room);
  LlamaCpp reference(path, room);
  float largest = 0;
  for (std::vector<std::int32_t> tokens : all) {
    engine.clear();
    reference.clear();
    for (Index i = 0; i < steps; ++i) {
      const auto logits = engine.run(tokens), expected = reference.run(tokens);
      CHECK(best(logits) == best(expected));
      for (std::size_t k = 0; k < logits.size(); ++k) largest = std::max(largest, std::abs(logits[k] - expected[k]));
      tokens = {best(expected)};
    }
  }
  MESSAGE(fmt::format("{} prompts, {} tokens each: logits differ by at most {}", all.size(), steps, largest));
  CHECK(largest < 0.05F);
}

TEST_CASE("a float file: the reference engine keeps the same tokens") {
  const auto all = prompts();
  if (all.empty() || !std::filesystem::exists(cached("smollm2"))) {
    MESSAGE("skipped: no smollm2 or smollm2.gguf in the cache, or no LongBench");
    return;
  }
  const llama::test::TemporaryFolder folder;
  const llama::Checkpoint checkpoint(cached("smollm2"));
  const auto weights = llama::weights_of(checkpoint);
  test::GgufWriter(checkpoint.config(), weights, {}).write(folder.path() / "model.gguf");
  const Model model(folder.path() / "model.gguf");
  Room exact = room;
  exact.cache_type = GGML_TYPE_F32;
  LazyEngine lazy(model, exact, lazyllm::make_pruner(preset()));
  const auto reference = llama::open_model(checkpoint.config(), weights, {.threads = 2});
  const auto host = reference->lazy({room.context}, lazyllm::make_pruner(preset()));
  for (const auto& tokens : all) {
    lazy.clear();
    host->clear();
    const auto logits = lazy.run(tokens);
    CHECK(best(logits) == best(host->step(tokens)));
    Index differences = 0;
    for (std::size_t t = 0; t < tokens.size(); ++t) differences += lazy.sequence().depths()[t] != host->depths()[t];
    CHECK(differences == 0);
  }
}

TEST_CASE("pruned: the divergence from dense is that of the reference engine") {
  const auto all = prompts();
  if (all.empty() || !std::filesystem::exists(cached("smollm2"))) {
    MESSAGE("skipped: no smollm2 or smollm2.gguf in the cache, or no LongBench");
    return;
  }
  const Model model(cached("smollm2.gguf"));
  const llama::Checkpoint checkpoint(cached("smollm2"));
  const auto reference = llama::open_model(checkpoint.config(), llama::weights_of(checkpoint), {.threads = 2});
  DenseEngine dense(model, room);
  const auto dense_host = reference->dense({room.context});
  LazyEngine lazy(model, room, lazyllm::make_pruner(preset()));
  const auto host = reference->lazy({room.context}, lazyllm::make_pruner(preset()));
  double own = 0, hosts = 0;
  for (std::vector<std::int32_t> tokens : all) {
    dense.clear();
    dense_host->clear();
    lazy.clear();
    host->clear();
    for (Index i = 0; i < steps; ++i) {
      const auto expected = dense.run(tokens);
      own += divergence(expected, lazy.run(tokens));
      hosts += divergence(dense_host->step(tokens), host->step(tokens));
      tokens = {best(expected)};
    }
  }
  const double count = static_cast<double>(all.size()) * static_cast<double>(steps);
  MESSAGE(fmt::format("KL against dense, mean of {} tokens: {:.4f}, reference engine {:.4f}", count, own / count,
                      hosts / count));
  CHECK(own < 1.2 * hosts);
}

TEST_CASE("the program: a table, and a prompt that is too long") {
  if (!std::filesystem::exists(cached("smollm2.gguf"))) {
    MESSAGE("skipped: no smollm2.gguf in the cache");
    return;
  }
  const std::string path = cached("smollm2.gguf");
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--model", path, "--max-tokens", "4", "--repeats", "1", "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return llama::test::run_process(LAZYLLM_GGML, arguments);
  };
  const auto good = run({"--prompt", "Hello!", "--chat", "--schedule", "dense"});
  CHECK(good.status == 0);
  for (const char* line : {"llama.cpp  ", "dense  ", "lazy  "}) {
    const auto begin = good.out.find(line);
    REQUIRE(begin != std::string::npos);
    const std::string row = good.out.substr(begin, good.out.find('\n', begin) - begin);
    CHECK(row.ends_with("4 of 4"));
  }
  const llama::test::TemporaryFolder folder;
  std::string words;
  for (int i = 0; i < 9000; ++i) words += "word ";
  const auto bad = run({"--prompt-file", folder.write("long.txt", words)});
  CHECK(bad.status == 1);
  CHECK(bad.err.find("tokens are out of range 1 to 8192, the model's context") != std::string::npos);
}
