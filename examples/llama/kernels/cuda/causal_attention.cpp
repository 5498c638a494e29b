#include "examples/llama/kernels/cuda/causal_attention.hpp"

#include <cudnn.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace llama {
namespace {

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 1024> message{};
  cudnnGetLastErrorString(message.data(), message.size());
  throw lazyllm::cuda_error(std::string(call) + ": " + cudnnGetErrorString(status) + " " + message.data());
}

template <class T>
constexpr cudnnBackendAttributeType_t type_of = {};
template <>
constexpr cudnnBackendAttributeType_t type_of<std::int64_t> = CUDNN_TYPE_INT64;
template <>
constexpr cudnnBackendAttributeType_t type_of<bool> = CUDNN_TYPE_BOOLEAN;
template <>
constexpr cudnnBackendAttributeType_t type_of<void*> = CUDNN_TYPE_VOID_PTR;
template <>
constexpr cudnnBackendAttributeType_t type_of<cudnnHandle_t> = CUDNN_TYPE_HANDLE;
template <>
constexpr cudnnBackendAttributeType_t type_of<cudnnDataType_t> = CUDNN_TYPE_DATA_TYPE;
template <>
constexpr cudnnBackendAttributeType_t type_of<cudnnPointwiseMode_t> = CUDNN_TYPE_POINTWISE_MODE;
template <>
constexpr cudnnBackendAttributeType_t type_of<cudnnReduceTensorOp_t> = CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
template <>
constexpr cudnnBackendAttributeType_t type_of<cudnnBackendHeurMode_t> = CUDNN_TYPE_HEUR_MODE;

/// An object of cuDNN's graphs: attributes are set, then it is finalized.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    check(cudnnBackendCreateDescriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
  }
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor() {
    if (descriptor_ != nullptr) cudnnBackendDestroyDescriptor(descriptor_);
  }

  cudnnBackendDescriptor_t get() const { return descriptor_; }

  template <class T>
  void set(cudnnBackendAttributeName_t name, std::initializer_list<T> values) {
    set(name, type_of<T>, std::ssize(values), values.begin());
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.descriptor_);
  }
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count, const void* values) {
    check(cudnnBackendSetAttribute(descriptor_, name, type, count, values), "cudnnBackendSetAttribute");
  }
  Descriptor&& finalize() {
    check(cudnnBackendFinalize(descriptor_), "cudnnBackendFinalize");
    return std::move(*this);
  }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

using Sizes = std::array<std::int64_t, 4>;  // batch, heads, rows, elements

/// The tensors that have memory, or are numbers of the host's.
enum Numbers : std::int64_t {
  queries_number = 1,
  keys_number,
  values_number,
  out_number,
  scale_number,
  lowest_number,
  hidden_number  ///< the first of those that have none
};

/// Attention as a graph of small operations, which cuDNN recognises as a whole:
///
///     S = scale Q K^T;  S = -inf where a key is behind its query;  P = exp(S - max S) / sum;  O = P V
///
/// and log(sum) + max S, which nobody reads but without which it does not recognise them.
class AttentionGraph {
 public:
  explicit AttentionGraph(const CausalProblem& problem) : type_(data_type(problem)) {
    const std::int64_t heads = problem.heads, kv_heads = problem.kv_heads, rows = problem.rows, dim = problem.head_dim;
    scores_ = {1, heads, rows, rows};
    rows_ = {1, heads, rows, 1};
    const Descriptor queries = tensor(queries_number, type_, {1, heads, rows, dim},
                                      {rows * problem.query_stride, dim, problem.query_stride, 1});
    const Descriptor keys = tensor(keys_number, type_, {1, kv_heads, dim, rows},
                                   {rows * problem.key_stride, problem.kv_head_stride, 1, problem.key_stride});
    const Descriptor values = tensor(values_number, type_, {1, kv_heads, rows, dim},
                                     {rows * problem.key_stride, problem.kv_head_stride, problem.key_stride, 1});
    const Descriptor out =
        tensor(out_number, type_, {1, heads, rows, dim}, {rows * problem.out_stride, dim, problem.out_stride, 1});

    const Descriptor products = hidden(scores_), scaled = hidden(scores_);
    multiply(queries, keys, products);
    pointwise(CUDNN_POINTWISE_MUL, products, &number(scale_number), scaled);
    const Descriptor query = hidden(scores_, CUDNN_DATA_INT32), key = hidden(scores_, CUDNN_DATA_INT32);
    index(scaled, 2, query);
    index(scaled, 3, key);
    const Descriptor visible = hidden(scores_, CUDNN_DATA_BOOLEAN), masked = hidden(scores_);
    pointwise(CUDNN_POINTWISE_CMP_GE, query, &key, visible);
    pointwise(CUDNN_POINTWISE_BINARY_SELECT, scaled, &number(lowest_number), masked, &visible);
    const Descriptor highest = hidden(rows_), below = hidden(scores_), weights = hidden(scores_), sums = hidden(rows_);
    reduce(CUDNN_REDUCE_TENSOR_MAX, masked, highest);
    pointwise(CUDNN_POINTWISE_SUB, masked, &highest, below);
    pointwise(CUDNN_POINTWISE_EXP, below, nullptr, weights);
    reduce(CUDNN_REDUCE_TENSOR_ADD, weights, sums);
    const Descriptor logs = hidden(rows_), stats = hidden(rows_);
    pointwise(CUDNN_POINTWISE_LOG, sums, nullptr, logs);
    pointwise(CUDNN_POINTWISE_ADD, highest, &logs, stats);
    const Descriptor shares = hidden(scores_, type_);
    pointwise(CUDNN_POINTWISE_DIV, weights, &sums, shares);
    multiply(shares, values, out);
  }

  const std::vector<Descriptor>& operations() const { return operations_; }

 private:
  static cudnnDataType_t data_type(const CausalProblem& problem) {
    return problem.type == CUDA_R_16F ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
  }

  static Descriptor tensor(std::int64_t number, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
                           bool is_virtual = false, bool by_value = false) {
    Descriptor made(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, {number});
    made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, {type});
    made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, {sizes[0], sizes[1], sizes[2], sizes[3]});
    made.set(CUDNN_ATTR_TENSOR_STRIDES, {strides[0], strides[1], strides[2], strides[3]});
    made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {std::int64_t{16}});
    made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, {is_virtual});
    made.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, {by_value});
    return made.finalize();
  }

  /// A result in between, which never is in memory.
  Descriptor hidden(const Sizes& sizes, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    const Sizes strides = {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
    return tensor(next_number_++, type, sizes, strides, true);
  }

  /// A number of the host's.
  Descriptor& number(std::int64_t number) {
    return numbers_.emplace_back(tensor(number, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true));
  }

  void multiply(const Descriptor& a, const Descriptor& b, const Descriptor& c) {
    Descriptor product(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    product.set(CUDNN_ATTR_MATMUL_COMP_TYPE, {CUDNN_DATA_FLOAT});
    product.finalize();
    Descriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, product);
    operations_.push_back(operation.finalize());
  }

  void pointwise(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor* b, const Descriptor& y,
                 const Descriptor* condition = nullptr, std::int64_t axis = -1) {
    Descriptor function(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    function.set(CUDNN_ATTR_POINTWISE_MODE, {mode});
    function.set(CUDNN_ATTR_POINTWISE_MATH_PREC,
                 {mode == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT});
    if (axis >= 0) function.set(CUDNN_ATTR_POINTWISE_AXIS, {axis});
    function.finalize();
    Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b != nullptr) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
    if (condition != nullptr) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *condition);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    operations_.push_back(operation.finalize());
  }

  /// Where along `axis` each element stands.
  void index(const Descriptor& x, std::int64_t axis, const Descriptor& y) {
    pointwise(CUDNN_POINTWISE_GEN_INDEX, x, nullptr, y, nullptr, axis);
  }

  void reduce(cudnnReduceTensorOp_t how, const Descriptor& x, const Descriptor& y) {
    Descriptor reduction(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    reduction.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, {CUDNN_DATA_FLOAT});
    reduction.set(CUDNN_ATTR_REDUCTION_OPERATOR, {how});
    reduction.finalize();
    Descriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
    operations_.push_back(operation.finalize());
  }

  cudnnDataType_t type_;
  Sizes scores_{}, rows_{};
  std::int64_t next_number_ = hidden_number;
  std::vector<Descriptor> numbers_;
  std::vector<Descriptor> operations_;
};

/// The graph of a problem, and what cuDNN proposes for it, the best first.
struct Proposals {
  /// For the device of `handle`, or for `device` where that is not null.
  Proposals(const CausalProblem& problem, cudnnHandle_t handle, const Descriptor* device) : attention(problem) {
    std::vector<cudnnBackendDescriptor_t> operations;
    for (const Descriptor& operation : attention.operations()) operations.push_back(operation.get());
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::ssize(operations), operations.data());
    if (device == nullptr) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, {handle});
    graph.finalize();
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, {CUDNN_HEUR_MODE_A});
    if (device != nullptr) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *device);
    if (cudnnBackendFinalize(heuristics.get()) != CUDNN_STATUS_SUCCESS) return;
    const auto get = [&](std::int64_t most, cudnnBackendDescriptor_t* results) {
      std::int64_t count = 0;
      check(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                     most, &count, results),
            "cudnnBackendGetAttribute");
      return count;
    };
    const std::int64_t count = get(0, nullptr);
    std::vector<cudnnBackendDescriptor_t> results;
    for (std::int64_t i = 0; i < count; ++i) {
      results.push_back(choices.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
    }
    get(count, results.data());
  }

  AttentionGraph attention;
  Descriptor graph{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
  Descriptor heuristics{CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR};
  std::vector<Descriptor> choices;
};

/// How a problem is run.
struct Plan {
  Plan(const CausalProblem& problem, cudnnHandle_t handle) : proposals(problem, handle, nullptr) {
    for (const Descriptor& choice : proposals.choices) {
      Descriptor made(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      made.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, {handle});
      made.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, choice);
      if (cudnnBackendFinalize(made.get()) != CUDNN_STATUS_SUCCESS) continue;
      std::int64_t count = 0;
      check(cudnnBackendGetAttribute(made.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                     &workspace),
            "cudnnBackendGetAttribute");
      execution = std::move(made);
      return;
    }
  }

  Proposals proposals;                  // must outlive the execution
  std::optional<Descriptor> execution;  // none without a kernel
  std::int64_t workspace = 0;           // bytes
};

}  // namespace

struct CausalAttention::State {
  cudnnHandle_t handle = nullptr;
  std::map<CausalProblem, Plan> plans;

  ~State() {
    if (handle != nullptr) cudnnDestroy(handle);
  }
};

CausalAttention::CausalAttention() : state_(std::make_unique<State>()) {
  check(cudnnCreate(&state_->handle), "cudnnCreate");
}
CausalAttention::~CausalAttention() = default;

bool CausalAttention::run(cudaStream_t stream, const std::function<std::byte*(Index)>& workspace,
                          const CausalProblem& problem, const void* queries, const void* keys, const void* values,
                          void* out) {
  constexpr std::size_t max_plans = 256;
  auto found = state_->plans.find(problem);
  if (found == state_->plans.end()) {
    if (state_->plans.size() == max_plans) state_->plans.clear();
    found = state_->plans.try_emplace(problem, problem, state_->handle).first;
  }
  const Plan& plan = found->second;
  if (!plan.execution) return false;
  float scale = problem.scale;
  float lowest = -std::numeric_limits<float>::infinity();
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                         {queries_number, keys_number, values_number, out_number, scale_number, lowest_number});
  pack.set<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, {const_cast<void*>(queries), const_cast<void*>(keys),
                                                          const_cast<void*>(values), out, &scale, &lowest});
  pack.set<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                  {plan.workspace == 0 ? nullptr : static_cast<void*>(workspace(plan.workspace))});
  pack.finalize();
  check(cudnnSetStream(state_->handle, stream), "cudnnSetStream");
  check(cudnnBackendExecute(state_->handle, plan.execution->get(), pack.get()), "cudnnBackendExecute");
  return true;
}

bool CausalAttention::compiles_for(const CausalProblem& problem, const std::string& device) {
  Descriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  properties.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, std::ssize(device) + 1, device.c_str());
  properties.finalize();
  const Proposals proposals(problem, nullptr, &properties);
  return std::ranges::any_of(proposals.choices, [&](const Descriptor& choice) {
    Descriptor made(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    made.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, properties);
    made.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, choice);
    const cudnnStatus_t status = cudnnBackendFinalize(made.get());
    // Without a device, the driver refuses the compiled kernel.
    return status == CUDNN_STATUS_SUCCESS || status == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER;
  });
}

}  // namespace llama
