#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/llama/files/output_file.hpp"
#include "examples/llama/program/command_line.hpp"
#include "examples/llama/program/console.hpp"
#include "tests/examples/llama/files.hpp"

using namespace llama;

namespace {

struct Outcome {
  int status = 0;
  std::string out, err;
};

/// What a program with `work` leaves, run by itself; before it, `prepare` may change its streams.
Outcome run(const std::function<void()>& work, const std::vector<const char*>& arguments = {},
            const std::function<void(CLI::App&)>& options = nullptr, const std::function<void()>& prepare = nullptr) {
  const test::TemporaryFolder folder;
  std::fflush(nullptr);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (const auto& [stream, name] : {std::pair(STDOUT_FILENO, "out"), std::pair(STDERR_FILENO, "err")}) {
      ::dup2(::open((folder.path() / name).c_str(), O_WRONLY | O_CREAT, 0600), stream);
    }
    if (prepare) prepare();
    CLI::App app("Tests.", "program");
    if (options) options(app);
    std::vector<std::string> texts(arguments.begin(), arguments.end());
    texts.insert(texts.begin(), "program");
    std::vector<char*> argv;
    for (std::string& text : texts) argv.push_back(text.data());
    ::_exit(run_program(app, static_cast<int>(argv.size()), argv.data(), work));
  }
  Outcome outcome;
  REQUIRE(::waitpid(child, &outcome.status, 0) == child);
  REQUIRE(WIFEXITED(outcome.status));
  outcome.status = WEXITSTATUS(outcome.status);
  outcome.out = test::read(folder.path() / "out");
  outcome.err = test::read(folder.path() / "err");
  return outcome;
}

void to_full_disk(int stream) { ::dup2(::open("/dev/full", O_WRONLY), stream); }

}  // namespace

TEST_CASE("numbers: what an option is given is one, all of it, and in range") {
  const auto status_of = [](const auto& range, auto value, const char* text) {
    const Outcome outcome =
        run([] {}, {"--number", text}, [&](CLI::App& app) { add_number(app, "--number", value, "a number", range); });
    CHECK((outcome.status == 0 || outcome.err.find("--number: ") == 0));
    return outcome.status;
  };
  const NumberRange<Index> counts{.least = 1};
  for (const char* text : {"1", "010", "9223372036854775807"}) CHECK(status_of(counts, Index{0}, text) == 0);
  for (const char* text : {"", " ", "0", "-1", "0x10", "1e3", "1.0", "1 ", "+1", "many", "9223372036854775808"}) {
    CAPTURE(text);
    CHECK(status_of(counts, Index{0}, text) == 2);
  }
  const NumberRange<std::uint64_t> seeds{};
  for (const char* text : {"0", "18446744073709551615"}) CHECK(status_of(seeds, std::uint64_t{0}, text) == 0);
  for (const char* text : {"", "-1", "18446744073709551616"}) CHECK(status_of(seeds, std::uint64_t{0}, text) == 2);
  const NumberRange<float> shares{};
  for (const char* text : {"0", "-1", "0.5", "1e-3", ".5"}) CHECK(status_of(shares, 0.0F, text) == 0);
  for (const char* text : {"", "inf", "nan", "-inf", "1e-300", "1e300", "0.5x", "0,5"}) {
    CAPTURE(text);
    CHECK(status_of(shares, 0.0F, text) == 2);
  }
}

TEST_CASE("numbers: of a long text the message shows the beginning") {
  Index number = 0;
  const std::string text = '1' + std::string(308, '0');
  const Outcome outcome = run([] {}, {"--number", text.c_str()},
                              [&](CLI::App& app) { add_number(app, "--number", number, "a number", {.least = 1}); });
  CHECK(outcome.status == 2);
  CHECK(outcome.err.find("--number: 1" + std::string(63, '0') +
                         "... is not a whole number from 1 to 9223372036854775807") == 0);
  CHECK(outcome.err.size() < 300);
}

TEST_CASE("numbers: for one that its type cannot hold the message says both bounds") {
  const auto message = [](auto number, const char* text) {
    const std::string line =
        run([] {}, {"--number", text}, [&](CLI::App& app) { add_number(app, "--number", number, "a number"); }).err;
    return line.substr(0, line.find('\n'));
  };
  CHECK(message(std::uint64_t{0}, "18446744073709551616") ==
        "--number: 18446744073709551616 is not a whole number from 0 to 18446744073709551615");
  CHECK(message(std::uint64_t{0}, "-1") == "--number: -1 is not a whole number of at least 0");
  CHECK(message(std::int32_t{0}, "-2147483649") ==
        "--number: -2147483649 is not a whole number from -2147483648 to 2147483647");
}

TEST_CASE("numbers: they are read as decimal ones") {
  Index number = 0;
  std::vector<Index> list;
  std::optional<Index> absent;
  CLI::App app;
  add_number(app, "--number", number, "a number");
  add_numbers(app, "--list", list, "numbers");
  add_number(app, "--absent", absent, "a number");
  const std::vector<const char*> argv = {"program", "--number", "010", "--list", "3", "4"};
  app.parse(static_cast<int>(argv.size()), argv.data());
  CHECK(number == 10);
  CHECK(list == std::vector<Index>{3, 4});
  CHECK_FALSE(absent);
}

TEST_CASE("paths: an empty one is refused") {
  std::string path;
  const auto options = [&](CLI::App& app) { add_path(app, "--json", path, "a file"); };
  const Outcome outcome = run([] {}, {"--json", ""}, options);
  CHECK(outcome.status == 2);
  CHECK(outcome.err.starts_with("--json: '' names no file\n"));
}

TEST_CASE("program: errors go to the standard error, as one line without control characters") {
  const Outcome error = run([] { throw std::runtime_error("a file holds \x1b[2J\n"); });
  CHECK(error.status == 1);
  CHECK(error.out.empty());
  CHECK(error.err == "program: a file holds \\x1b[2J\\x0a\n");
  const Outcome mistake = run([] {}, {"\x1b[2J"});
  CHECK(mistake.status == 2);
  CHECK(mistake.err.find('\x1b') == std::string::npos);
  const Outcome longest = run([] { throw std::runtime_error(std::string(1'000'000, 'x')); });
  CHECK(longest.err.size() < 5000);
  CHECK(longest.err.ends_with("...\n"));
}

TEST_CASE("program: a standard error that cannot be written ends nothing") {
  const test::TemporaryFolder folder;
  const auto full = [] { to_full_disk(STDERR_FILENO); };
  const auto closed = [] { ::close(STDERR_FILENO); };
  for (const auto& prepare : {std::function<void()>(full), std::function<void()>(closed)}) {
    const auto work = [&] {
      say("a bad line");
      OutputFile(folder.path() / "out").commit("results");
    };
    CHECK(run(work, {}, nullptr, prepare).status == 0);
    CHECK(test::read(folder.path() / "out") == "results");
    CHECK(run([] { throw std::runtime_error("wrong"); }, {}, nullptr, prepare).status == 1);
    CHECK(run([] {}, {"--wrong"}, nullptr, prepare).status == 2);
  }
}

TEST_CASE("program: a standard output that cannot be written is an error, after all the work") {
  const test::TemporaryFolder folder;
  const auto full = [] { to_full_disk(STDOUT_FILENO); };
  const auto work = [&] {
    print("text {}\n", 1);
    OutputFile(folder.path() / "out").commit("results");
  };
  const Outcome outcome = run(work, {}, nullptr, full);
  CHECK(outcome.status == 1);
  CHECK(outcome.err == "program: the standard output cannot be written\n");
  CHECK(test::read(folder.path() / "out") == "results");
  CHECK(run([] {}, {"--help"}, nullptr, full).status == 1);
  CHECK(run([] {}, {"--help"}).status == 0);
  CHECK(run(work).out == "text 1\n");
}

TEST_CASE("program: a stream that nobody reads ends nothing before the results are written") {
  const test::TemporaryFolder folder;
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    const auto prepare = [stream] {
      int ends[2];
      if (::pipe(ends) != 0) return;
      ::dup2(ends[1], stream);
      ::close(ends[0]);
      ::close(ends[1]);
    };
    const std::string name = "out" + std::to_string(stream);
    const auto work = [&] {
      print("text");
      say("figures");
      OutputFile(folder.path() / name).commit("results");
    };
    CHECK(run(work, {}, nullptr, prepare).status == (stream == STDOUT_FILENO ? 1 : 0));
    CHECK(test::read(folder.path() / name) == "results");
  }
}

TEST_CASE("program: what is printed to closed streams ends up in no file") {
  const test::TemporaryFolder folder;
  const auto close_all = [] {
    for (int stream = 0; stream < 3; ++stream) ::close(stream);
  };
  const auto work = [&] {
    const OutputFile file(folder.path() / "out");
    print("text");
    say("figures");
    file.commit("results");
  };
  CHECK(run(work, {}, nullptr, close_all).status == 0);
  CHECK(test::read(folder.path() / "out") == "results");
}

TEST_CASE("program: where memory ends, the message says for what") {
  const Outcome outcome = run([] { throw std::bad_alloc(); });
  CHECK(outcome.status == 1);
  CHECK(outcome.err == "program: not enough memory for what the options and files ask for\n");
  const auto fail = []() -> std::string { throw std::bad_alloc(); };
  const auto in_help = run([] {}, {"--help"}, [&](CLI::App& app) { app.footer(fail); });
  const auto in_option =
      run([] {}, {"--name", "x"},
          [&](CLI::App& app) { app.add_option_function<std::string>("--name", [&](const std::string&) { fail(); }); });
  for (const Outcome& early : {in_help, in_option}) {
    CHECK(early.status == 1);
    CHECK(early.err == "program: not enough memory for what the options and files ask for\n");
  }
}

TEST_CASE("program: a mapped file that becomes shorter ends it with a message") {
  const test::TemporaryFolder folder;
  const auto path = folder.write("file", std::string(100'000, 'x'));
  const Outcome outcome = run([&] {
    const int file = ::open(path.c_str(), O_RDONLY);
    const auto* bytes = static_cast<const volatile char*>(::mmap(nullptr, 100'000, PROT_READ, MAP_PRIVATE, file, 0));
    std::filesystem::resize_file(path, 10);
    if (bytes[90'000] == 'x') throw std::runtime_error("unreachable");
  });
  CHECK(outcome.status == 1);
  CHECK(outcome.err.find("has become shorter") != std::string::npos);
}

TEST_CASE("program: a limit on the size of files is an error and not a signal") {
  const test::TemporaryFolder folder;
  const auto limit = [] {
    const rlimit size{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &size);
  };
  const Outcome outcome =
      run([&] { OutputFile(folder.path() / "out").commit(std::string(5000, 'x')); }, {}, nullptr, limit);
  CHECK(outcome.status == 1);
  CHECK(outcome.err.find("out: the file cannot be written: File too large") != std::string::npos);
}
