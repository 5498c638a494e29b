#include "cuda_cases.hpp"

#ifdef LLAMA_HAS_CUDNN
namespace llama::test {

TEST_CASE("cuda: attention of whole prompts by cuDNN") {
  const TestSequence prompt{range(0, 300), range(0, 300)}, longer{range(0, 512), range(0, 512)};
  for (const AttentionShape shape : {AttentionShape{2, 2, 64}, {4, 1, 128}}) {
    check_attention<__half>({shape, {prompt, longer}});
    check_attention<__nv_bfloat16>({shape, {prompt, longer}});
  }
}

}  // namespace llama::test
#endif
