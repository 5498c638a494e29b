#include "examples/llama/program/brief_spinning.hpp"

#include <sys/auxv.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace llama {

void spin_briefly(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  // Where the loader or valgrind runs the program, it is not what would start.
  std::error_code error;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): getauxval gives addresses as numbers
  const auto* const program = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  if (program == nullptr || !std::filesystem::equivalent(program, "/proc/self/exe", error)) return;
  // Fewer spins make a decode step slower that has the machine for itself: up to twice as slow without any (measured).
  if (::setenv("GOMP_SPINCOUNT", "1000", 0) != 0) return;
  ::execv("/proc/self/exe", argv);  // returns only where it fails: the program then runs as it is
}

}  // namespace llama
