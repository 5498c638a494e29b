#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "bench/examples/llama/model/cpu_ttft.hpp"
#include "bench/examples/llama/model/device_cases.hpp"
#include "bench/examples/llama/model/ttft_options.hpp"
#include "examples/llama/files/output_file.hpp"
#include "examples/llama/program/brief_spinning.hpp"
#include "examples/llama/program/command_line.hpp"
#include "examples/llama/program/console.hpp"
#include "examples/llama/program/model_files.hpp"
#include "examples/llama/program/pruning_options.hpp"

namespace {

using namespace llama;

nlohmann::ordered_json run(const TtftOptions& options, [[maybe_unused]] const SaveCases& save) {
  if (options.device == "cpu") return run_on_cpu(options);
#ifdef LLAMA_HAS_CUDA
  return run_on_device(options, save);
#else
  fail("--device ", options.device,
       ": this build has no CUDA; configure one with cmake --preset cuda or -DLAZYLLM_CUDA=ON");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  spin_briefly(argv);
  TtftOptions options;
  CLI::App app(
      "Times prefill and decode of a randomly initialised model: dense, through the library with everything kept, and "
      "with pruning, in turn.",
      "ttft_bench");
  app.add_option("--device", options.device, "where to compute")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--shape", options.shape, "134m, smollm2, qwen2.5-0.5b, 1.1b, llama-2-7b or llama-3-8b")
      ->capture_default_str();
  constexpr Index max_tokens = Index{1} << 24;
  add_numbers(app, "--prompt", options.prompts, "prompt tokens; on a CUDA device several lengths, one after the other",
              {1, max_tokens});
  add_numbers(app, "--batch", options.batches, "sequences at once, on a CUDA device; several one after the other",
              {1, max_tokens});
  add_pruning_options(app, options.pruning);
  // On a CUDA device it may be repeated; `results` has all of them.
  const CLI::Option* const schedule = app.get_option("--schedule")->take_last();
  app.add_option("--dtype", options.dtype, "type of weights, K/V and hidden states")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  add_weights_option(app, options.int8);
  add_number(app, "--threads", options.threads, "threads to compute with", {1, 1024});
  add_number(app, "--generate", options.generate, "tokens to generate, at most as many as the prompt has",
             {1, max_tokens});
  add_number(app, "--repeats", options.repeats,
             "runs of each; figures are medians; on a CUDA device short prefills have more", {1, max_tokens});
  add_number(app, "--overhead-turns", options.overhead_turns,
             "further turns of dense and keep 1 alone, for their small difference, on the CPU", {0, max_tokens});
  add_number(app, "--seconds", options.seconds,
             "start no new case after so many seconds, and name those left out; on a CUDA device", {.least = 0});
  add_path(app, "--json", options.json,
           "write the figures to this file instead of the standard output; on a CUDA device after each case");
  app.footer("On a CUDA device --schedule can be repeated: the weights are loaded once for all cases.");
  return run_program(app, argc, argv, [&] {
    options.schedules = schedule->results();
    std::optional<OutputFile> file;
    for (const PruningOptions& pruning : options.prunings()) {
      check_apart({{"--json", options.json}}, {{"--schedule", preset_file_of(pruning)}});
    }
    if (!options.json.empty()) file.emplace(options.json);
    const auto save = [&](const nlohmann::ordered_json& report) {
      if (file) file->commit(report.dump(2) + "\n");
    };
    const auto report = run(options, save);
    save(report);
    if (!file) print("{}\n", report.dump(2));
  });
}
