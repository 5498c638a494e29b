#include "examples/llama/program/processes.hpp"

#include <CLI/CLI.hpp>

#include "examples/llama/base.hpp"

#ifdef LLAMA_HAS_MPI
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <lazyllm/mpi.hpp>
#include <span>

#include "examples/llama/program/command_line.hpp"
#include "examples/llama/program/console.hpp"
#endif

namespace llama {

void add_parallel_option(CLI::App& app, std::string& parallel) {
  app.add_option("--parallel", parallel,
                 "mpi: mpirun has started several of this program, which split the model's heads, feed-forward and "
                 "vocabulary (tensor parallelism); --threads is of each")
      ->check(CLI::IsMember({"mpi"}));
}

#ifdef LLAMA_HAS_MPI

namespace {

/// Adds up `values` over all processes, in pieces that MPI can count.
void sum(std::span<float> values) {
  constexpr std::size_t most = std::size_t{1} << 30;
  for (; !values.empty(); values = values.subspan(std::min(most, values.size()))) {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(std::min(most, values.size())), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  }
}

/// Sends both standard outputs to nowhere, and returns where the standard error went.
int be_silent() {
  const int standard_error = ::dup(STDERR_FILENO);
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (standard_error < 0 || nowhere < 0 || ::dup2(nowhere, STDOUT_FILENO) < 0 || ::dup2(nowhere, STDERR_FILENO) < 0) {
    fail("the standard outputs cannot be closed");
  }
  ::close(nowhere);
  return standard_error;
}

}  // namespace

void run_parallel(const std::string& parallel, const std::function<void(std::shared_ptr<RankGroup>)>& work) {
  if (parallel.empty()) return work(nullptr);
  int threads = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &threads);
  int rank = 0;
  int count = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  std::exception_ptr failure;
  int standard_error = STDERR_FILENO;
  try {
    if (rank > 0) standard_error = be_silent();
    work(std::make_shared<RankGroup>(rank, count, lazyllm::mpi_all_reduce(MPI_COMM_WORLD), sum));
  } catch (const lazyllm::rank_error&) {
    failure = std::current_exception();  // all of them have it, and the first one says it
  } catch (const std::exception& error) {
    ::dup2(standard_error, STDERR_FILENO);
    say("rank {} of {}: {}", rank, count, plain_message(error));
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  if (failure && rank == 0) std::rethrow_exception(failure);
}

#else

void run_parallel(const std::string& parallel, const std::function<void(std::shared_ptr<RankGroup>)>& work) {
  if (!parallel.empty())
    fail("--parallel ", parallel, ": this build has no MPI; install libopenmpi-dev and configure again");
  work(nullptr);
}

#endif

}  // namespace llama
