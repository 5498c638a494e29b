#include <Eigen/Core>

#include "backend/conformance.hpp"
#include "support/cpu_memory.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

TEST_CASE("cpu: copies rows") {
  copies_rows<CpuMemory<1>, float>();
  copies_rows<CpuMemory<3>, float>();
  copies_rows<CpuMemory<2>, Eigen::bfloat16>();
  copies_rows<CpuMemory<2>, Eigen::half>();
}
TEST_CASE("cpu: copies lists of rows") { copies_lists_of_rows<CpuMemory<2>>(); }
TEST_CASE("cpu: copies to and from the host") {
  copies_to_and_from_host<CpuMemory<1>, float>();
  copies_to_and_from_host<CpuMemory<1>, Eigen::half>();
}
TEST_CASE("cpu: selects small cases") { selects_small_cases<CpuMemory<1>>(); }
TEST_CASE("cpu: selects equal scores") { selects_equal_scores<CpuMemory<1>>(); }
TEST_CASE("cpu: selects like a stable sort") { selects_like_a_stable_sort<CpuMemory<1>>(); }
TEST_CASE("cpu: selects for ragged batches") { selects_for_ragged_batches<CpuMemory<1>>(); }
TEST_CASE("cpu: selects the same share in any order") { selects_the_same_share_in_any_order<CpuMemory<1>>(); }
TEST_CASE("cpu: selects the same share at any scale") { selects_the_same_share_at_any_scale<CpuMemory<1>>(); }
TEST_CASE("cpu: selects only finite scores") { selects_only_finite_scores<CpuMemory<1>>(); }
TEST_CASE("cpu: scores attention") {
  scores_attention<CpuMemory<2>, float>();
  scores_attention<CpuMemory<1>, Eigen::bfloat16>();
  scores_attention<CpuMemory<1>, Eigen::half>();
}
TEST_CASE("cpu: scores attention with large logits") { scores_attention_with_large_logits<CpuMemory<1>>(); }
TEST_CASE("cpu: scores ragged batches") {
  scores_ragged_batches<CpuMemory<2>, float>();
  scores_ragged_batches<CpuMemory<2>, Eigen::bfloat16>();
}
TEST_CASE("cpu: honours strides of queries and keys") { honours_strides<CpuMemory<1>>(); }
TEST_CASE("cpu: hides keys beyond a row's limit") { hides_keys_beyond_the_limit<CpuMemory<1>>(); }
TEST_CASE("cpu: passes bad numbers on to the scores") { passes_bad_numbers_on<CpuMemory<1>>(); }
TEST_CASE("cpu: pools scores") { pools_scores<CpuMemory<2>>(); }
TEST_CASE("cpu: finds bad scores among pooled ones") { finds_bad_scores_among_pooled_ones<CpuMemory<1>>(); }
TEST_CASE("cpu: accumulates scores") { accumulates_scores<CpuMemory<1>>(); }
TEST_CASE("cpu: grows buffers") {
  grows_buffers<CpuMemory<1>, float>();
  grows_buffers<CpuMemory<1>, Eigen::bfloat16>();
}
