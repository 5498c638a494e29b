#pragma once

#include <mpi.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "lazyllm/engine/error.hpp"
#include "lazyllm/parallel/ranks.hpp"

namespace lazyllm {

namespace detail {

/// Throws `rank_error` unless `code` is that of success.
inline void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail<rank_error>(call, ": ", std::string_view(text, to_size(length)));
}

}  // namespace detail

/// `MPI_Allreduce` on `communicator`, which must outlive what is returned. By MPI's default an error, such as a process
/// that was killed, ends all processes; a communicator with `MPI_ERRORS_RETURN` throws `rank_error`.
inline Ranks::AllReduce mpi_all_reduce(MPI_Comm communicator) {
  return [communicator](std::span<std::int64_t> values, ReduceOp op) {
    if (values.size() > std::numeric_limits<int>::max()) {
      detail::fail("mpi_all_reduce: ", values.size(), " numbers are out of range 0 to ",
                   std::numeric_limits<int>::max());
    }
    detail::check_mpi(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_INT64_T,
                                    op == ReduceOp::sum ? MPI_SUM : MPI_MAX, communicator),
                      "MPI_Allreduce");
  };
}

/// The ranks of `communicator`, which must outlive them. MPI has been initialised.
inline Ranks mpi_ranks(MPI_Comm communicator) {
  int rank = 0;
  int count = 0;
  detail::check_mpi(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  detail::check_mpi(MPI_Comm_size(communicator, &count), "MPI_Comm_size");
  return Ranks(rank, count, mpi_all_reduce(communicator));
}

}  // namespace lazyllm
