#include "examples/llama/model/host_memory.hpp"

#include <fmt/format.h>

#include <limits>
#include <stdexcept>
#include <string>

namespace llama {

namespace {
constexpr double gibibyte = 1 << 30;
}

std::string not_enough_memory(std::string_view what, double bytes) {
  constexpr double mebibyte = 1 << 20;
  const bool little = bytes < gibibyte;
  return fmt::format("not enough memory: {} need {:.1f} {}", what, bytes / (little ? mebibyte : gibibyte),
                     little ? "MiB" : "GiB");
}

std::string weights_in_words(const Placement& placement) {
  return fmt::format("the weights in {}", placement.int8 ? "int8" : placement.dtype);
}

double host_weight_bytes(const ModelConfig& config, const Placement& placement) {
  const double weights = static_cast<double>(config.layers) * layer_weights(config) +
                         static_cast<double>(config.vocab * config.hidden_size);
  const double bytes = placement.int8 ? 1 : placement.dtype == "f32" ? 4 : 2;
  return weights * bytes / (placement.group ? static_cast<double>(placement.group->ranks().count()) : 1);
}

std::optional<double> available_bytes(std::istream& meminfo) {
  constexpr double kibibyte = 1024;
  for (std::string name; meminfo >> name;) {
    double value = 0;
    if (name == "MemAvailable:" && meminfo >> value) return value * kibibyte;
    meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

void check_weights_fit(const ModelConfig& config, const Placement& placement, std::optional<double> available) {
  const double needed = host_weight_bytes(config, placement);
  if (!available || needed <= *available) return;
  const auto advice = placement.int8             ? ""
                      : placement.dtype == "f32" ? "; --dtype bf16 or --weights int8 need less"
                                                 : "; --weights int8 needs less";
  throw std::runtime_error(fmt::format("{}, {:.1f} GiB are free{}",
                                       not_enough_memory(weights_in_words(placement), needed), *available / gibibyte,
                                       advice));
}

}  // namespace llama
