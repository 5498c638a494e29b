#include "examples/llama/program/command_line.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sstream>

#include "examples/llama/files/printable.hpp"
#include "examples/llama/program/console.hpp"

namespace llama {
namespace {

/// Without this the first file that is opened would become the standard output, and get what is printed.
void open_standard_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF) {
      [[maybe_unused]] const int same = ::open("/dev/null", O_RDWR);  // the lowest number that is free
    }
  }
}

/// Says why and ends the program when a mapped file has become shorter: there is no way back into what read it.
void end_on_bus_error(int) {
  constexpr std::string_view text =
      "a file that was being read has become shorter (SIGBUS): the checkpoint must not change while it is loaded\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  ::_exit(EXIT_FAILURE);
}

/// Lets the last value count where an option is given several times, so that a script can put defaults first.
void take_last_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  for (CLI::App* group : app.get_subcommands([](CLI::App*) { return true; })) take_last_values(*group);
}

/// The exit status after `error`, which may be the wish for help.
int report(const CLI::App& app, const CLI::ParseError& error) {
  std::ostringstream help, mistake;
  const int status = app.exit(error, help, mistake);
  print_text(help.str());
  print_status(printable(mistake.str(), Controls::lines));
  return status == 0 ? 0 : 2;
}

int parse_and_run(CLI::App& app, int argc, char** argv, const std::function<void()>& work) {
  try {
    take_last_values(app);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return report(app, error);
    }
    work();
    return 0;
  } catch (const std::bad_alloc&) {
    say("{}: not enough memory for what the options and files ask for", app.get_name());
  } catch (const std::exception& error) {
    say("{}: {}", app.get_name(), plain_message(error));
  }
  return 1;
}

}  // namespace

void add_weights_option(CLI::App& app, bool& int8) {
  app.add_option_function<std::string>(
         "--weights", [&int8](const std::string& format) { int8 = format == "int8"; },
         "weights of the products on the CPU: in the type of --dtype, or whole numbers of 8 bit with a scale for each "
         "output")
      ->check(CLI::IsMember({"dtype", "int8"}))
      ->default_str("dtype");
}

int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& work) {
  open_standard_streams();
  for (const int signal : {SIGXFSZ, SIGPIPE}) std::signal(signal, SIG_IGN);  // writing fails instead, and says so
  std::signal(SIGBUS, end_on_bus_error);
  const int status = parse_and_run(app, argc, argv, work);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  say("{}: the standard output cannot be written", app.get_name());
  return status == 0 ? 1 : status;
}

}  // namespace llama
