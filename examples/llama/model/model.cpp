#include "examples/llama/model/model.hpp"

#include "examples/llama/model/cpu.hpp"

namespace llama {

template class Model<float>;
template class Model<Eigen::bfloat16>;

}  // namespace llama
