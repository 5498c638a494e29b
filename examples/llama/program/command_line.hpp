#pragma once

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <concepts>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "examples/llama/base.hpp"

namespace llama {

/// The error's message without the library's name in front.
inline std::string_view plain_message(const std::exception& error) {
  std::string_view message = error.what();
  if (message.starts_with("lazyllm: ")) message.remove_prefix(9);
  return message;
}

/// Which numbers an option takes.
template <class Number>
requires std::is_arithmetic_v<Number>
struct NumberRange {
  Number least = std::numeric_limits<Number>::lowest();
  Number most = std::numeric_limits<Number>::max();
};

/// The number that is all of `text`, in decimal. Throws `CLI::ValidationError` that names `option` if it is not one of
/// `range`: neither an empty text nor 0x10, inf and nan are.
template <class Number>
requires std::is_arithmetic_v<Number> Number parse_number(const std::string& option, const std::string& text,
                                                          NumberRange<Number> range) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  bool good = error == std::errc() && stop == end && number >= range.least && number <= range.most;
  std::string expected = "a whole number";
  if constexpr (std::floating_point<Number>) {
    good = good && std::isfinite(number);
    expected = "a finite number";
  }
  if (good) return number;
  const bool too_far = error == std::errc::result_out_of_range;  // for the type
  if (std::floating_point<Number> && too_far) expected += " that a float can hold";
  const bool bounded_below = range.least != std::numeric_limits<Number>::lowest();
  const bool bounded_above = range.most != std::numeric_limits<Number>::max();
  if (bounded_above || (std::integral<Number> && too_far)) {
    expected += fmt::format(" from {} to {}", range.least, range.most);
  } else if (bounded_below || std::unsigned_integral<Number>) {
    expected += fmt::format(" of at least {}", range.least);
  }
  constexpr std::size_t longest = 64;  // the reason behind the text must be seen
  const std::string given = text.empty() ? "''" : text.size() > longest ? text.substr(0, longest) + "..." : text;
  throw CLI::ValidationError(option, fmt::format("{} is not {}", given, expected));
}

/// Adds an option for a number, which must outlive the parsing.
template <class Number>
requires std::is_arithmetic_v<Number> CLI::Option* add_number(CLI::App& app, const std::string& name, Number& value,
                                                              const std::string& help, NumberRange<Number> range = {}) {
  const auto set = [name, &value, range](const std::string& text) { value = parse_number(name, text, range); };
  return app.add_option_function<std::string>(name, set, help)->type_name("N")->default_str(fmt::format("{}", value));
}

/// Adds an option for a number that may be absent, which must outlive the parsing.
template <class Number>
requires std::is_arithmetic_v<Number> CLI::Option* add_number(CLI::App& app, const std::string& name,
                                                              std::optional<Number>& value, const std::string& help,
                                                              NumberRange<Number> range = {}) {
  const auto set = [name, &value, range](const std::string& text) { value = parse_number(name, text, range); };
  return app.add_option_function<std::string>(name, set, help)->type_name("N");
}

/// Adds an option for one or more numbers, which must outlive the parsing.
template <class Number>
requires std::is_arithmetic_v<Number> CLI::Option* add_numbers(CLI::App& app, const std::string& name,
                                                               std::vector<Number>& values, const std::string& help,
                                                               NumberRange<Number> range = {}) {
  const auto set = [name, &values, range](const std::vector<std::string>& texts) {
    values.clear();
    for (const std::string& text : texts) values.push_back(parse_number(name, text, range));
  };
  return app.add_option_function<std::vector<std::string>>(name, set, help)
      ->type_name("N")
      ->default_str(fmt::format("{}", fmt::join(values, " ")));
}

/// Adds an option for a path, which must outlive the parsing. An empty text is refused: a script whose variable is
/// empty would lose its results.
template <class Path>
CLI::Option* add_path(CLI::App& app, const std::string& name, Path& value, const std::string& help) {
  const auto set = [name, &value](const std::string& text) {
    if (text.empty()) throw CLI::ValidationError(name, "'' names no file");
    value = text;
  };
  return app.add_option_function<std::string>(name, set, help)->type_name("PATH");
}

/// Adds `--weights`, the format of the products' weights on the CPU. `int8`, which must outlive the parsing, is whether
/// they are whole numbers of 8 bit.
void add_weights_option(CLI::App& app, bool& int8);

/// What `main` does: reads the command line, of which the last value of an option counts, then calls `work`. Returns
/// the program's exit status: 2 for a command line that is not understood, 1 where `work` throws or what was printed
/// could not be written. Messages go to the standard error; where it cannot be written the program goes on.
int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& work);

}  // namespace llama
