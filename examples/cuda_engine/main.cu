#include <iostream>

#include "engine.cuh"

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::cout << "There is no CUDA device.\n";
    return 0;
  }
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  {
    const lazyllm::KeepRatio half({{2, 0.5}, {4, 0.5}});  // half of the tokens after layer 2, half of these after 4
    on_cuda::Engine engine(stream, lazyllm::ProtectFirst{half, 4});
    std::vector<std::int32_t> text(300);
    for (std::int32_t i = 0; i < 300; ++i) text[i] = i * i % on_cuda::vocabulary;
    std::cout << "Answer:";
    for (int i = 0; i < 16; ++i) {
      text.push_back(engine.run(std::span(text).subspan(engine.sequence.length())));
      std::cout << " " << text.back();
      if (i > 0) continue;
      const double share = lazyllm::computed_share(engine.sequence.depths(), on_cuda::layer_count);
      std::cout << " (the first token, from " << 100 * share << " % of the prompt's work)";
    }
    std::cout << "\n";
  }
  cudaStreamDestroy(stream);
}
