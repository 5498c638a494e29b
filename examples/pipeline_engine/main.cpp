#include "engine.hpp"

#include <iostream>

/// Answers with the layers 0 to 2 in one process and 3 to 5 in the other, and compares with all of them in one.
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, count = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  try {
    if (count != 2) throw std::invalid_argument("start it as: mpirun -n 2 pipeline_engine");
    bool equal = true;
    for (const double keep : {1.0, 0.5}) {  // half of the tokens after layer 2, half of these after 3, and 4
      const lazyllm::ProtectFirst policy{lazyllm::KeepRatio({{2, keep}, {3, keep}, {4, keep}}), 4};
      pipeline::Engine engine(rank == 0 ? 0 : 3, rank == 0 ? 3 : 6, policy, /*capacity=*/320);
      contiguous::Engine whole(policy, /*capacity=*/320);
      std::vector<std::int32_t> text(300);
      for (std::int32_t i = 0; i < 300; ++i) text[i] = i * i % contiguous::vocabulary;
      contiguous::Index prompt_bytes = 0;
      for (int i = 0; i < 16; ++i) {
        const auto tokens = std::span(text).subspan(engine.sequence.length());
        std::int32_t expected = 0;
        whole.run(tokens).maxCoeff(&expected);
        const std::int32_t next = engine.run(tokens);
        equal = equal && next == expected && std::ranges::equal(engine.sequence.depths(), whole.sequence.depths());
        text.push_back(next);
        if (i == 0) prompt_bytes = engine.stage.bytes_sent;
      }
      if (rank == 0) {
        std::cout << "keep " << keep << ": " << prompt_bytes << " bytes of the prompt went to the second stage, "
                  << engine.stage.bytes_sent - prompt_bytes << " of 15 tokens\n";
      }
    }
    std::cout << "Stage " << rank << ": kept tokens and answers are " << (equal ? "those" : "NOT those")
              << " of one process\n";
    MPI_Finalize();
    return equal ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}
