#pragma once

#include <functional>
#include <memory>
#include <string>

#include "examples/llama/model/rank_group.hpp"

namespace CLI {
class App;
}

namespace llama {

/// Adds `--parallel`. `parallel` must outlive the parsing; it stays empty for a program that runs alone.
void add_parallel_option(CLI::App& app, std::string& parallel);

/// Calls `work(group)`: alone with null, else as one of the processes that `mpirun` has started, of which only the
/// first writes to the standard output. What they throw together goes on; an error of one process alone ends all of
/// them. Throws `std::invalid_argument` for a way that this build does not have.
void run_parallel(const std::string& parallel, const std::function<void(std::shared_ptr<RankGroup>)>& work);

}  // namespace llama
