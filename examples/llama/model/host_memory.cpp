#include "examples/llama/model/host_memory.hpp"

#include <fmt/format.h>

#include <limits>
#include <stdexcept>
#include <string>

namespace llama {

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
  constexpr double gibibyte = 1 << 30;
  const double needed = host_weight_bytes(config, placement);
  if (!available || needed <= *available) return;
  const auto advice = placement.int8             ? ""
                      : placement.dtype == "f32" ? "; --dtype bf16 or --weights int8 need less"
                                                 : "; --weights int8 needs less";
  throw std::runtime_error(fmt::format("not enough memory: the weights in {} need {:.1f} GiB, {:.1f} GiB are free{}",
                                       placement.int8 ? "int8" : placement.dtype, needed / gibibyte,
                                       *available / gibibyte, advice));
}

}  // namespace llama
