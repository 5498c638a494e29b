// The same prompt with llama.cpp itself, with this engine and all tokens, and with this engine and LazyLLM.
#include <fmt/format.h>
#include <ggml.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "examples/ggml_engine/dense_engine.hpp"
#include "examples/ggml_engine/lazy_engine.hpp"
#include "examples/ggml_engine/llama_cpp.hpp"
#include "examples/llama/files/input_file.hpp"
#include "examples/llama/program/command_line.hpp"
#include "examples/llama/program/console.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "examples/llama/program/timing.hpp"

namespace {

using namespace ggml_engine;

struct Options {
  std::string model, prompt, prompt_file, only;
  bool chat = false;
  llama::PruningOptions pruning;
  Index max_tokens = 32, repeats = 3;
  int threads = 2;
};

/// One greedy answer, and how long its tokens took in milliseconds.
struct Answer {
  std::vector<std::int32_t> tokens;
  std::vector<double> times;
};

/// One of the three that are compared.
struct Contender {
  std::string name;
  std::function<void()> clear;
  std::function<std::vector<float>(std::span<const std::int32_t>)> run;
  std::vector<Answer> answers = {};

  void answer(std::span<const std::int32_t> prompt, Index max_tokens) {
    clear();
    Answer& answer = answers.emplace_back();
    for (Index i = 0; i < max_tokens; ++i) {
      const auto start = llama::Clock::now();
      const auto logits = run(i == 0 ? prompt : std::span<const std::int32_t>(answer.tokens).last(1));
      answer.times.push_back(llama::milliseconds_since(start));
      answer.tokens.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
    }
  }

  /// The median over the answers of what `of` says of one.
  template <class Of>
  double median(const Of& of) const {
    std::vector<double> values;
    for (const Answer& answer : answers) values.push_back(of(answer.times));
    return llama::median(values);
  }
  double first_token() const {
    return median([](const auto& times) { return times[0]; });
  }
  double second_token() const {
    return median([](const auto& times) { return times[1]; });
  }
  double later_tokens() const {
    return median([](const auto& times) { return llama::median({times.begin() + 2, times.end()}); });
  }
};

/// Operations of the linear layers and the attention of a prompt, by what its layers computed.
double operations(const Shape& shape, std::span<const lazyllm::LayerStats> layers) {
  const auto count = [](Index a, Index b) { return static_cast<double>(a) * static_cast<double>(b); };
  const Index query_width = shape.heads * shape.head_dim;
  double sum = 0;
  for (const auto& layer : layers) {
    const bool last = &layer == &layers.back();
    const Index attending = last ? 1 : layer.computed, feeding = last ? 1 : layer.kept;
    const double pairs = last ? static_cast<double>(layer.active) : count(layer.computed, layer.computed + 1) / 2;
    sum += count(layer.computed, 4 * shape.hidden_size * shape.kv_width()) +
           count(attending, 4 * shape.hidden_size * query_width) + 4 * pairs * static_cast<double>(query_width) +
           count(feeding, 6 * shape.hidden_size * shape.intermediate_size);
  }
  return sum;
}

Index common(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

void print_table(std::span<const Contender> contenders, const Vocabulary& vocabulary) {
  const Contender& first = contenders.front();
  llama::print("{:<12}{:>10}{:>9}{:>15}{:>15}{:>16}\n", "", "TTFT", "", "second token", "later tokens", "tokens equal");
  for (const Contender& contender : contenders) {
    const auto& tokens = contender.answers.front().tokens;
    llama::print("{:<12}{:>7.0f} ms{:>8.2f}x{:>12.1f} ms{:>12.1f} ms{:>10} of {}\n", contender.name,
                 contender.first_token(), first.first_token() / contender.first_token(), contender.second_token(),
                 contender.later_tokens(), common(tokens, first.answers.front().tokens), tokens.size());
  }
  for (const Contender& contender : contenders) {
    const auto& tokens = contender.answers.front().tokens;
    const auto end = std::ranges::find_if(tokens, [&](std::int32_t token) { return vocabulary.ends(token); });
    llama::print("\n{}: {}\n", contender.name, vocabulary.text({tokens.begin(), end}));
  }
}

void work(const Options& options) {
  std::unique_ptr<const Model> model;  // llama.cpp has its own
  if (options.only != "llama.cpp") model = std::make_unique<const Model>(options.model);
  const Vocabulary vocabulary(options.model);
  std::string text = options.prompt_file.empty() ? options.prompt : llama::read_input(options.prompt_file);
  if (options.chat) text = vocabulary.chat(text);
  const auto prompt = vocabulary.tokens(text);
  if (prompt.empty()) throw std::runtime_error("the prompt has 0 tokens, at least 1 is needed");

  const Room room{.context = std::ssize(prompt) + options.max_tokens, .threads = options.threads};
  const auto wanted = [&](std::string_view name) { return options.only.empty() || options.only == name; };
  std::unique_ptr<LlamaCpp> llama_cpp;
  std::unique_ptr<DenseEngine> dense;
  std::unique_ptr<LazyEngine> lazy;
  std::vector<Contender> contenders;
  const auto add = [&](const std::string& name, auto& engine) {
    contenders.push_back({.name = name,
                          .clear = [&engine] { engine->clear(); },
                          .run = [&engine](std::span<const std::int32_t> tokens) { return engine->run(tokens); }});
  };
  if (wanted("llama.cpp")) {
    llama_cpp = std::make_unique<LlamaCpp>(options.model, room);
    add("llama.cpp", llama_cpp);
  }
  if (wanted("dense")) {
    dense = std::make_unique<DenseEngine>(*model, room);
    add("dense", dense);
  }
  if (wanted("lazy")) {
    lazy = std::make_unique<LazyEngine>(
        *model, room, llama::make_pruner(options.pruning, model->shape().layers, llama::widths_of(model->shape())));
    add("lazy", lazy);
  }

  double lazy_operations = 0;
  if (lazy) {
    llama::say_if_not_pruned(llama::resolved(options.pruning, model->shape().layers, llama::widths_of(model->shape())),
                             std::ssize(prompt));
  }
  llama::say("{} tokens of prompt, {} of answer, {} threads, median of {}", prompt.size(), options.max_tokens,
             options.threads, options.repeats);
  for (Index i = 0; i < options.repeats; ++i) {
    for (Contender& contender : contenders) contender.answer(prompt, options.max_tokens);
  }
  print_table(contenders, vocabulary);
  if (lazy) {
    lazy->clear();
    lazy->run(prompt);
    lazy_operations = operations(model->shape(), lazy->stats().layers);
    const lazyllm::LayerStats all{
        .active = std::ssize(prompt), .computed = std::ssize(prompt), .kept = std::ssize(prompt)};
    const std::vector<lazyllm::LayerStats> layers(lazy->stats().layers.size(), all);
    llama::print("\nlazy: ideal TTFT speedup over dense, by operations: {:.2f}x\n",
                 operations(model->shape(), layers) / lazy_operations);
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  llama::print("memory: {} MiB at most", usage.ru_maxrss / 1024);
  if (lazy)
    llama::print("; lazy: {:.1f} MiB of K/V, {:.1f} MiB of graphs",
                 static_cast<double>(lazy->forward().cache_bytes()) / (1 << 20),
                 static_cast<double>(lazy->forward().compute_bytes()) / (1 << 20));
  llama::print("\n");
}

}  // namespace

int main(int argc, char** argv) {
  // What ggml cannot go on from ends the program as an error does, not as a crash.
  ggml_set_abort_callback([](const char* message) {
    llama::say("ggml: {}", message);
    _exit(1);
  });
  log_errors_only();

  Options options;
  CLI::App app("Answers a prompt with llama.cpp, with the ggml engine and all tokens, and with LazyLLM");
  llama::add_path(app, "--model", options.model, "GGUF file of the architecture llama, qwen2 or qwen3")->required();
  auto* const prompt = app.add_option("--prompt", options.prompt, "the prompt");
  llama::add_path(app, "--prompt-file", options.prompt_file, "file with the prompt")->excludes(prompt);
  app.add_flag("--chat", options.chat, "the prompt is the first message of a chat");
  llama::add_pruning_options(app, options.pruning);
  llama::add_number(app, "--max-tokens", options.max_tokens, "tokens of the answer", {.least = 3});
  llama::add_number(app, "--repeats", options.repeats, "how often all is done; times are medians", {.least = 1});
  llama::add_number(app, "--threads", options.threads, "threads", {.least = 1});
  app.add_option("--only", options.only, "only one of them")->check(CLI::IsMember({"llama.cpp", "dense", "lazy"}));
  return llama::run_program(app, argc, argv, [&] { work(options); });
}
