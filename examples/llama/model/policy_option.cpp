#include "examples/llama/model/policy_option.hpp"

#include <charconv>
#include <cstdint>

#include "lazyllm/policy/policies.hpp"

namespace lazyllm::llama {

AnyPolicy parse_policy(std::string_view text, Index layers) {
  if (text == "dense") return KeepAll();
  if (text == "paper") return PaperSchedule();
  const std::size_t at = text.find('@');
  const std::string_view kind = at == std::string_view::npos ? "" : text.substr(0, at);
  Schedule schedule = Schedule::parse(at == std::string_view::npos ? text : text.substr(at + 1));
  schedule.check(layers);
  if (at == std::string_view::npos) return KeepFraction(std::move(schedule));
  if (kind == "mass") return KeepMass(std::move(schedule));
  if (kind == "static") return StaticPruning(std::move(schedule));
  constexpr std::string_view random = "random=";
  if (kind.starts_with(random)) {
    std::uint64_t seed = 0;
    const char* end = kind.data() + kind.size();
    const auto [stop, error] = std::from_chars(kind.data() + random.size(), end, seed);
    if (error == std::errc() && stop == end) return RandomDrop(std::move(schedule), seed);
  }
  detail::fail("schedule '", text, "': '", kind, "' is not one of mass, static and random=SEED");
}

}  // namespace lazyllm::llama
