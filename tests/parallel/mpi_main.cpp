#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <mpi.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int status = doctest::Context(argc, argv).run();
  MPI_Finalize();
  return status;
}
