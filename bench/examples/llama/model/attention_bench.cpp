#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/examples/llama/model/gemm_rate.hpp"
#include "bench/examples/llama/model/shapes.hpp"
#include "examples/llama/files/output_file.hpp"
#include "examples/llama/kernels/cpu/attention.hpp"
#include "examples/llama/kernels/cpu/isa.hpp"
#include "examples/llama/program/command_line.hpp"
#include "examples/llama/program/console.hpp"
#include "examples/llama/program/interleaved.hpp"
#include "examples/llama/program/timing.hpp"

namespace {

using namespace llama;

struct Options {
  std::vector<Index> keys{1000, 2000, 4000, 16000};
  std::vector<Index> head_dims{64, 128};
  std::vector<Index> groups{1, 2, 4, 8};
  Index heads = 8;
  Index kept = 100;
  Index rows = 0;
  bool scattered = false;
  std::string dtype = "bf16";
  bool own = false;
  int threads = 2;
  Index repeats = 5;
  std::string json;
};

template <class T>
std::vector<T> random_values(Index count) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<T> made;
  std::generate_n(std::back_inserter(made), count, [&] { return static_cast<T>(values(random)); });
  return made;
}

/// A random choice of `count` of the positions below `end`, ascending.
std::vector<Position> any_positions(Index count, Index end, unsigned seed) {
  std::vector<Position> all(static_cast<std::size_t>(end)), chosen;
  std::iota(all.begin(), all.end(), 0);
  std::ranges::sample(all, std::back_inserter(chosen), count, std::mt19937(seed));
  return chosen;
}

/// Which of `keys` keys the rows stand at, ascending: all, the last ones, or any.
std::vector<Position> places_of_rows(const Options& options, Index keys) {
  const Index rows = options.rows == 0 ? keys : options.rows;
  if (options.scattered) return any_positions(rows, keys, 3);
  std::vector<Position> last(static_cast<std::size_t>(rows));
  std::iota(last.begin(), last.end(), static_cast<Position>(keys - rows));
  return last;
}

/// Causal attention to `keys` keys, whose tokens are the given percentage of a longer text's.
template <class T>
nlohmann::ordered_json measure(const Options& options, Index keys, Index head_dim, Index group) {
  const Index kv_heads = options.heads / group;
  const Index query_width = options.heads * head_dim, width = kv_heads * head_dim;
  const Index tokens = keys * 100 / options.kept;
  std::vector<Position> limits = places_of_rows(options, keys);  // a row sees the keys up to its own
  for (Position& limit : limits) ++limit;
  const Index rows = std::ssize(limits);
  const auto queries = random_values<T>(rows * query_width);
  const auto cached_keys = random_values<T>(tokens * width), cached_values = random_values<T>(tokens * width);
  std::vector<T> out(queries.size());
  const std::vector<Position> positions = any_positions(keys, tokens, 2);
  lazyllm::cpu::Context context(options.threads);
  const auto once = [&] {
    const Clock::time_point start = Clock::now();
    attention<T>(context, {options.heads, kv_heads, head_dim, 0.125f},
                 {cached_keys.data(), cached_values.data(), width, head_dim}, positions, limits,
                 {queries.data(), rows, query_width}, {out.data(), rows, query_width},
                 options.own ? BlockProducts::own : BlockProducts::automatic);
    return milliseconds_since(start);
  };
  // The rate of the fastest of seven, or of as many as take 0.3 s, as for the products.
  const auto run = [&] {
    double fastest = once(), sum = fastest;
    for (int i = 1; i < 7 && sum < 300; ++i) {
      const double time = once();
      fastest = std::min(fastest, time);
      sum += time;
    }
    const double operations = 4 * std::accumulate(limits.begin(), limits.end(), 0.0) * static_cast<double>(query_width);
    return operations / fastest * 1e-6;
  };
  const ModelConfig config = shape_named("134m");
  const auto product = [&] { return gemm_rate(config, 1024, options.dtype == "bf16", options.threads) * 1e-9; };
  run();  // warm-up
  const auto [rates, product_rates] = interleaved(options.repeats, run, product);
  std::vector<double> shares;
  for (std::size_t i = 0; i < rates.size(); ++i) shares.push_back(100 * rates[i] / product_rates[i]);
  return {{"isa", best_isa()},
          {"dtype", options.dtype},
          {"threads", options.threads},
          {"repeats", options.repeats},
          {"products", options.own ? "own" : "library"},
          {"head_dim", head_dim},
          {"group", group},
          {"heads", options.heads},
          {"rows", rows},
          {"scattered", options.scattered},
          {"keys", keys},
          {"kept_percent", options.kept},
          {"attention_gflops", median(rates)},
          {"product_gflops", median(product_rates)},
          {"share_percent", median(shares)}};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times the CPU's causal attention beside the GEMM library's products, in turn.", "attention_bench");
  constexpr Index most = Index{1} << 20;
  add_numbers(app, "--keys", options.keys, "keys, one case after the other", {1, most});
  add_number(app, "--rows", options.rows, "rows, those of the last keys; 0: as many as keys", {0, most});
  app.add_flag("--scattered", options.scattered, "the rows are of any keys, as those of revived tokens");
  add_numbers(app, "--head-dim", options.head_dims, "elements of a head", {2, 4096});
  add_numbers(app, "--group", options.groups, "query heads of each key/value head", {1, 1024});
  add_number(app, "--heads", options.heads, "query heads, a multiple of the groups", {1, 1024});
  add_number(app, "--kept", options.kept, "percent of the tokens that are keys, the others lie between", {1, 100});
  app.add_option("--dtype", options.dtype, "type of queries, K/V and products")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  app.add_flag("--own", options.own, "multiply without the library");
  add_number(app, "--threads", options.threads, "threads to compute with", {1, 1024});
  add_number(app, "--repeats", options.repeats, "runs of each; figures are medians", {1, most});
  add_path(app, "--json", options.json, "write the figures to this file instead of the standard output");
  return run_program(app, argc, argv, [&] {
    std::optional<OutputFile> file;
    if (!options.json.empty()) file.emplace(options.json);
    if (const Index least = std::ranges::min(options.keys); options.rows > least) {
      fail("--rows ", options.rows, " is out of range 0 to ", least, ", the fewest keys");
    }
    nlohmann::ordered_json report = nlohmann::ordered_json::array();
    for (const Index head_dim : options.head_dims) {
      for (const Index group : options.groups) {
        if (options.heads % group != 0) fail("--group ", group, " must divide --heads ", options.heads);
        for (const Index keys : options.keys) {
          report.push_back(options.dtype == "f32" ? measure<float>(options, keys, head_dim, group)
                                                  : measure<Eigen::bfloat16>(options, keys, head_dim, group));
        }
      }
    }
    if (file) {
      file->commit(report.dump(2) + "\n");
    } else {
      print("{}\n", report.dump(2));
    }
  });
}
