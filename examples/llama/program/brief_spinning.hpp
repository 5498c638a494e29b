#pragma once

namespace llama {

/// Lets OpenMP's threads spin for some microseconds when they wait for others, and then sleep; by default GCC's runtime
/// spins for milliseconds. A thread that spins for one whose core another process has taken keeps that one off the
/// second core, and a decode step of two threads takes many times as long. The user's own settings stay. The runtime
/// reads the setting before `main`, so the program starts once more. To be called first in `main`, with its `argv`.
void spin_briefly(char** argv);

}  // namespace llama
