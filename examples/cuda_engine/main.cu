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
    on_cuda::Engine engine(stream, lazyllm::ProtectFirst{half, 4}, /*capacity=*/320);
    std::vector<std::int32_t> text(300);
    for (std::int32_t i = 0; i < 300; ++i) text[i] = i * i % on_cuda::vocabulary;
    std::cout << "Answer:";
    for (int i = 0; i < 16; ++i) {
      const std::vector<float> last = engine.run(std::span(text).subspan(engine.sequence.length()));
      std::int32_t next = 0;  // the token whose embedding is most like it
      float highest = -INFINITY;
      for (std::int32_t token = 0; token < on_cuda::vocabulary; ++token) {
        float logit = 0;
        for (int d = 0; d < on_cuda::hidden_size; ++d)
          logit += last[d] * engine.embedding[token * on_cuda::hidden_size + d];
        if (logit > highest) highest = logit, next = token;
      }
      text.push_back(next);
      std::cout << " " << next;
      if (i > 0) continue;
      const double share = lazyllm::computed_share(engine.sequence.depths(), on_cuda::layer_count);
      std::cout << " (the first token, from " << 100 * share << " % of the prompt's work)";
    }
    std::cout << "\n";
  }
  cudaStreamDestroy(stream);
}
