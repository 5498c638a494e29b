#include "examples/llama/generate/generator.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "examples/llama/files/printable.hpp"
#include "examples/llama/program/console.hpp"
#include "examples/llama/program/generation.hpp"

namespace llama {

using Json = nlohmann::ordered_json;

namespace {

/// Prints text of a model, which may be anything: a terminal gets no control characters.
void print_answer(const std::string& text) {
  static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  print_text(terminal ? printable(text, Controls::lines) : text);
}

}  // namespace

Run Generator::generate(AnyDecoder& decoder, bool stream) {
  decoder.clear();
  Run run;
  run.prompt_tokens = std::ssize(prompt_);
  run.kv_bytes = decoder.kv_bytes();
  Sampler sampler = sampler_;
  const double before = decoder.operations();
  Json active = Json::array();
  ActiveLayers active_layers;
  decoder.observe_layers([&](const lazyllm::LayerPlan& plan) {
    if (run.tokens.empty()) {
      status_.show(fmt::format("prefill layer {}/{}: {} rows", plan.layer() + 1, plan.layers(), plan.rows()));
      auto& layers = run.prefill_layers;
      if (!layers.empty()) layers.back().kept = std::ssize(plan.keys());
      layers.push_back({std::ssize(plan.keys()), plan.rows(), 0, std::ssize(plan.keys())});
    }
    if (recording_.trace) active.push_back(plan.keys());
    if (recording_.active_layers) record(plan, active_layers);
  });
  const auto emit = [&](const std::string& text) {
    run.text += text;
    if (stream) print_answer(text);
  };
  const auto draw = [&](std::span<const float> logits) { return sampler.draw(logits); };
  const auto keep = [&](const GeneratedStep& step) {
    const bool prefill = run.tokens.empty();
    if (prefill) {
      status_.clear();
      run.prefill_operations = decoder.operations() - before;
    }
    run.step_ms.push_back(step.ms);
    run.tokens.push_back(step.token);
    if (recording_.logits) run.logits.insert(run.logits.end(), step.logits.begin(), step.logits.end());
    if (recording_.trace) {
      run.trace.push_back(
          {{"new_tokens", prefill ? prompt_.size() : 1}, {"active", std::exchange(active, Json::array())}});
    }
    run.active_layers.push_back(std::exchange(active_layers, {}));
    const lazyllm::StepStats stats = decoder.stats();
    run.revived += stats.revived();
    run.aux_bytes_peak = std::max(run.aux_bytes_peak, stats.aux_bytes);
    if (tokenizer_ == nullptr && stream) print("{} ", step.token);
    emit(step.text);
  };
  emit(generate_tokens(decoder, prompt_, max_tokens_, stop_, tokenizer_, draw, keep));
  decoder.observe_layers(nullptr);
  run.prompt_computed_percent = decoder.computed_percent(std::ssize(prompt_));
  return run;
}

}  // namespace llama
