#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "examples/llama/base.hpp"

namespace llama {

/// The check of a command line number of at least `least`.
inline CLI::Validator at_least(Index least) {
  const auto check = [least](const std::string& text) {
    Index number = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    const bool good = error == std::errc() && stop == end && number >= least;
    return good ? std::string() : fmt::format("{} is not a whole number of at least {}", text, least);
  };
  return CLI::Validator(check, "");
}

/// The error's message without the library's name in front.
inline std::string_view plain_message(const std::exception& error) {
  std::string_view message = error.what();
  if (message.starts_with("lazyllm: ")) message.remove_prefix(9);
  return message;
}

/// Lets the last value count where an option is given several times, so that a script can put defaults first.
inline void take_last_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  for (CLI::App* group : app.get_subcommands([](CLI::App*) { return true; })) take_last_values(*group);
}

/// What `main` does: reads the command line, of which the last value of an option counts, then calls `work`. Returns
/// the program's exit status: 2 for a command line that is not understood, 1 where `work` throws.
template <class Work>
int run_program(CLI::App& app, int argc, char** argv, const Work& work) {
  take_last_values(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    work();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", app.get_name(), plain_message(error));
    return 1;
  }
  return 0;
}

}  // namespace llama
