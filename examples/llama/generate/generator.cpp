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

/// A generation that is under way.
class Generator::Ongoing {
 public:
  Ongoing(Generator& generator, AnyDecoder& decoder, bool stream)
      : generator_(generator),
        decoder_(decoder),
        stream_(stream),
        sampler_(generator.sampler_),
        generation_(decoder, generator.prompt_, generator.max_tokens_, generator.stop_, generator.tokenizer_) {
    decoder_.clear();
    run_.prompt_tokens = std::ssize(generator_.prompt_);
    run_.kv_bytes = decoder_.kv_bytes();
    operations_before_ = decoder_.operations();
    decoder_.observe_layers([this](const lazyllm::LayerPlan& plan) { observe(plan); });
  }
  Ongoing(const Ongoing&) = delete;  // the decoder knows where it is
  Ongoing& operator=(const Ongoing&) = delete;
  ~Ongoing() { decoder_.observe_layers(nullptr); }

  bool ended() const { return generation_.ended(); }

  void step() {
    keep(generation_.step([this](std::span<const float> logits) { return sampler_.draw(logits); }));
  }

  Run end() {
    emit(generation_.rest());
    run_.prompt_computed_percent = decoder_.computed_percent(std::ssize(generator_.prompt_));
    return std::move(run_);
  }

 private:
  void observe(const lazyllm::LayerPlan& plan) {
    if (run_.tokens.empty()) {
      generator_.status_.show(
          fmt::format("prefill layer {}/{}: {} rows", plan.layer() + 1, plan.layers(), plan.rows()));
      auto& layers = run_.prefill_layers;
      if (!layers.empty()) layers.back().kept = std::ssize(plan.keys());
      layers.push_back({std::ssize(plan.keys()), plan.rows(), 0, std::ssize(plan.keys())});
    }
    if (generator_.recording_.trace) active_.push_back(plan.keys());
    if (generator_.recording_.active_layers) record(plan, active_layers_);
  }

  void emit(const std::string& text) {
    run_.text += text;
    if (stream_) print_answer(text);
  }

  void keep(const GeneratedStep& step) {
    const bool prefill = run_.tokens.empty();
    if (prefill) {
      generator_.status_.clear();
      run_.prefill_operations = decoder_.operations() - operations_before_;
    }
    run_.step_ms.push_back(step.ms);
    run_.tokens.push_back(step.token);
    const Recording& recording = generator_.recording_;
    if (recording.logits) run_.logits.insert(run_.logits.end(), step.logits.begin(), step.logits.end());
    if (recording.trace) {
      run_.trace.push_back(
          {{"new_tokens", prefill ? generator_.prompt_.size() : 1}, {"active", std::exchange(active_, Json::array())}});
    }
    run_.active_layers.push_back(std::exchange(active_layers_, {}));
    const lazyllm::StepStats stats = decoder_.stats();
    run_.revived += stats.revived();
    run_.aux_bytes_peak = std::max(run_.aux_bytes_peak, stats.aux_bytes);
    if (generator_.tokenizer_ == nullptr && stream_) print("{} ", step.token);
    emit(step.text);
  }

  Generator& generator_;
  AnyDecoder& decoder_;
  bool stream_;
  Sampler sampler_;
  Generation<AnyDecoder> generation_;
  Run run_;
  double operations_before_ = 0;
  Json active_ = Json::array();
  ActiveLayers active_layers_;
};

Run Generator::generate(AnyDecoder& decoder, bool stream) {
  Ongoing ongoing(*this, decoder, stream);
  while (!ongoing.ended()) ongoing.step();
  return ongoing.end();
}

std::pair<Run, Run> Generator::generate_in_turn(AnyDecoder& first, AnyDecoder& second) {
  Ongoing one(*this, first, false);
  Ongoing other(*this, second, false);
  const auto step = [](Ongoing& ongoing) {
    if (!ongoing.ended()) ongoing.step();
  };
  for (Index round = 0; !one.ended() || !other.ended(); ++round) {
    step(round % 2 == 0 ? one : other);
    step(round % 2 == 0 ? other : one);
  }
  return {one.end(), other.end()};
}

}  // namespace llama
