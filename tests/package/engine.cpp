// A program that uses the CPU backend, and is compiled with no flags but its own.
#include <lazyllm/lazyllm.hpp>

#ifdef _OPENMP
#error "the library's target switches OpenMP on"
#endif

int main() { return lazyllm::cpu::Context(1).threads() - 1; }
