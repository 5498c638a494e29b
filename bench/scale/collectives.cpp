/// Times what could make the scores of all ranks the same, and the sum of hidden states: microseconds, the median of
/// 200 calls after 20. One line of JSON, from rank 0.
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <lazyllm/lazyllm.hpp>
#include <lazyllm/mpi.hpp>
#include <span>
#include <vector>

namespace {

/// A call has ended when the last rank has.
template <class Call>
double microseconds(const Call& call) {
  constexpr int warm = 20, calls = 200;
  std::vector<double> times;
  for (int i = 0; i < warm + calls; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    call();
    double time = 1e6 * (MPI_Wtime() - start);
    MPI_Allreduce(MPI_IN_PLACE, &time, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (i >= warm) times.push_back(time);
  }
  std::ranges::nth_element(times, times.begin() + calls / 2);
  return times[calls / 2];
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  {
    lazyllm::Ranks ranks = lazyllm::mpi_ranks(MPI_COMM_WORLD);
    for (const int tokens : {1, 512, 4096, 32768}) {
      const auto count = static_cast<std::size_t>(tokens);
      std::vector<float> scores(count, 0.001F);
      std::vector<float> joined(count * static_cast<std::size_t>(ranks.count()));
      std::vector<float> rows(count * 64, 0.0F);  // whose sums do not grow from call to call
      const double whole = microseconds([&] {     // what the library does: whole numbers are added
        const auto sums = ranks.all_reduce(count, lazyllm::ReduceOp::sum, [&](std::span<std::int64_t> own) {
          for (std::size_t i = 0; i < count; ++i) own[i] = std::llround(ranks.share() * double{scores[i]} * 0x1p50);
        });
        for (std::size_t i = 0; i < count; ++i) scores[i] = static_cast<float>(static_cast<double>(sums[i]) * 0x1p-50);
      });
      const double gather = microseconds([&] {  // all have all floats, and add them in the order of the ranks
        MPI_Allgather(scores.data(), tokens, MPI_FLOAT, joined.data(), tokens, MPI_FLOAT, MPI_COMM_WORLD);
        for (std::size_t i = 0; i < count; ++i) {
          float sum = 0;
          for (std::size_t r = 0; r < joined.size(); r += count) sum += joined[r + i];
          scores[i] = sum / static_cast<float>(ranks.count());
        }
      });
      const double broadcast = microseconds([&] {  // one rank adds and tells the others
        MPI_Reduce(scores.data(), joined.data(), tokens, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
        MPI_Bcast(joined.data(), tokens, MPI_FLOAT, 0, MPI_COMM_WORLD);
      });
      const double hidden = microseconds([&] {  // floats in any order: no rank knows what the others have
        MPI_Allreduce(MPI_IN_PLACE, rows.data(), static_cast<int>(rows.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      });
      if (ranks.rank() == 0) {
        std::printf(
            "{\"ranks\": %d, \"tokens\": %d, \"whole_numbers_us\": %.1f, \"gather_us\": %.1f, "
            "\"reduce_broadcast_us\": %.1f, \"rows_of_64_us\": %.1f}\n",
            static_cast<int>(ranks.count()), tokens, whole, gather, broadcast, hidden);
      }
    }
  }
  MPI_Finalize();
}
