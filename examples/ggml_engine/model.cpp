#include "examples/ggml_engine/model.hpp"

#include <fmt/format.h>
#include <ggml-cpu.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace ggml_engine {

namespace {

/// The metadata of a GGUF file, and its tensors without their data.
class File {
 public:
  explicit File(std::string path) : path_(std::move(path)) {
    // gguf_init_from_file says why it refuses a file through ggml's log only.
    std::string log;
    ggml_log_callback before = nullptr;
    void* before_data = nullptr;
    ggml_log_get(&before, &before_data);
    ggml_log_set([](ggml_log_level, const char* text, void* all) { static_cast<std::string*>(all)->append(text); },
                 &log);
    ggml_context* tensors = nullptr;
    file_.reset(gguf_init_from_file(path_.c_str(), {.no_alloc = true, .ctx = &tensors}));
    tensors_.reset(tensors);
    ggml_log_set(before, before_data);
    std::ranges::replace(log, '\n', ' ');
    if (!file_ || !tensors_) fail("this is no GGUF file that ggml reads: {}", log);
  }

  template <class... Parts>
  [[noreturn]] void fail(fmt::format_string<Parts...> text, Parts&&... parts) const {
    throw std::runtime_error(path_ + ": " + fmt::format(text, std::forward<Parts>(parts)...));
  }

  /// The name of the architecture, which is the prefix of its keys.
  std::string architecture() const {
    const auto key = gguf_find_key(file_.get(), "general.architecture");
    if (key < 0 || gguf_get_kv_type(file_.get(), key) != GGUF_TYPE_STRING) fail("there is no general.architecture");
    return gguf_get_val_str(file_.get(), key);
  }

  bool has(const std::string& name) const { return gguf_find_key(file_.get(), name.c_str()) >= 0; }

  Index whole(const std::string& name, Index least, Index most, std::optional<Index> absent = {}) const {
    const auto value = number(name, absent ? std::optional(static_cast<double>(*absent)) : std::nullopt);
    if (!(value >= static_cast<double>(least) && value <= static_cast<double>(most)) || value != std::floor(value)) {
      fail("{} {} is out of range {} to {}", name, value, least, most);
    }
    return static_cast<Index>(value);
  }

  float positive(const std::string& name, std::optional<double> absent = {}) const {
    const double value = number(name, absent);
    if (!(value > 0 && std::isfinite(value))) fail("{} {} is out of range: more than 0", name, value);
    return static_cast<float>(value);
  }

  /// The tensor of this name and shape; null if it may be absent and is.
  ggml_tensor* tensor(const std::string& name, std::initializer_list<Index> shape, bool may_be_absent = false) const {
    ggml_tensor* const found = ggml_get_tensor(tensors_.get(), name.c_str());
    if (found == nullptr && may_be_absent) return nullptr;
    if (found == nullptr) fail("there is no tensor {}", name);
    std::vector<Index> expected(shape);
    expected.resize(GGML_MAX_DIMS, 1);
    if (!std::equal(expected.begin(), expected.end(), found->ne)) {
      fail("tensor {} has {} x {} x {} elements, not {} x {} x {}", name, found->ne[0], found->ne[1], found->ne[2],
           expected[0], expected[1], expected[2]);
    }
    if (expected[1] == 1 && found->type != GGML_TYPE_F32) {
      fail("tensor {} has the type {}, not f32", name, ggml_type_name(found->type));
    }
    return found;
  }

  /// How many rows a matrix has.
  Index rows_of(const std::string& name) const {
    const ggml_tensor* const found = ggml_get_tensor(tensors_.get(), name.c_str());
    if (found == nullptr) fail("there is no tensor {}", name);
    return found->ne[1];
  }

  ggml_context_ptr take_tensors() { return std::move(tensors_); }

  /// Fills a tensor that has memory.
  void read(ggml_tensor* tensor) const {
    const auto at = gguf_get_data_offset(file_.get()) +
                    gguf_get_tensor_offset(file_.get(), gguf_find_tensor(file_.get(), tensor->name));
    std::vector<char> bytes(ggml_nbytes(tensor));
    std::ifstream stream(path_, std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    if (!stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
      fail("the file ends before the end of tensor {}", tensor->name);
    }
    ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
  }

 private:
  double number(const std::string& name, std::optional<double> absent) const {
    const auto key = gguf_find_key(file_.get(), name.c_str());
    if (key < 0 && absent) return *absent;
    if (key < 0) fail("there is no {}", name);
    switch (const gguf_type type = gguf_get_kv_type(file_.get(), key)) {
      case GGUF_TYPE_UINT16: return gguf_get_val_u16(file_.get(), key);
      case GGUF_TYPE_UINT32: return gguf_get_val_u32(file_.get(), key);
      case GGUF_TYPE_INT32: return gguf_get_val_i32(file_.get(), key);
      case GGUF_TYPE_UINT64: return static_cast<double>(gguf_get_val_u64(file_.get(), key));
      case GGUF_TYPE_FLOAT32: return gguf_get_val_f32(file_.get(), key);
      default: fail("{} has the type {}, which this engine does not know there", name, gguf_type_name(type));
    }
  }

  std::string path_;
  gguf_context_ptr file_;
  ggml_context_ptr tensors_;
};

Shape read_shape(const File& file) {
  const std::string name = file.architecture();
  if (name != "llama" && name != "qwen2" && name != "qwen3") {
    file.fail("the architecture is {}; this engine knows llama, qwen2 and qwen3", name);
  }
  constexpr Index most = 1 << 20;  // products of two sizes stay far below the largest Index
  Shape shape;
  shape.layers = file.whole(name + ".block_count", 1, 1 << 10);
  shape.hidden_size = file.whole(name + ".embedding_length", 1, most);
  shape.intermediate_size = file.whole(name + ".feed_forward_length", 1, most);
  shape.heads = file.whole(name + ".attention.head_count", 1, most);
  shape.kv_heads = file.whole(name + ".attention.head_count_kv", 1, shape.heads, shape.heads);
  shape.head_dim =
      file.whole(name + ".attention.key_length", 2, most, std::max<Index>(shape.hidden_size / shape.heads, 2));
  shape.context = file.whole(name + ".context_length", 1, 1 << 30);
  shape.norm_epsilon = file.positive(name + ".attention.layer_norm_rms_epsilon");
  shape.rope_base = file.positive(name + ".rope.freq_base", 10000);
  shape.rope_mode = name == "llama" ? GGML_ROPE_TYPE_NORMAL : GGML_ROPE_TYPE_NEOX;
  shape.qk_norm = name == "qwen3";
  if (shape.heads % shape.kv_heads != 0) {
    file.fail("{} query heads are no multiple of {} key heads", shape.heads, shape.kv_heads);
  }
  if (shape.head_dim % 2 != 0) file.fail("a head has {} elements, an odd number", shape.head_dim);
  file.whole(name + ".attention.value_length", shape.head_dim, shape.head_dim, shape.head_dim);
  file.whole(name + ".rope.dimension_count", shape.head_dim, shape.head_dim, shape.head_dim);
  file.whole(name + ".expert_count", 0, 0, 0);
  for (const char* unknown : {".rope.scaling.type", ".attention.sliding_window", ".attention.scale"}) {
    if (file.has(name + unknown)) file.fail("it has {}{}, which this engine does not know", name, unknown);
  }
  return shape;
}

/// The buffer type of the CPU backend in which a matrix is multiplied fastest: some types are packed anew.
ggml_backend_buffer_type_t buffer_type_of(ggml_backend_dev_t cpu, const ggml_tensor* matrix) {
  const auto extra_types = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts"));
  ggml_backend_buffer_type_t* type = extra_types != nullptr ? extra_types(cpu) : nullptr;
  for (; type != nullptr && *type != nullptr; ++type) {
    const ggml_context_ptr context(
        ggml_init({.mem_size = 8 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
    ggml_tensor* const weight = ggml_new_tensor_2d(context.get(), matrix->type, matrix->ne[0], matrix->ne[1]);
    const ggml_backend_buffer_ptr empty(ggml_backend_buft_alloc_buffer(*type, 0));
    weight->buffer = empty.get();
    ggml_tensor* const rows = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, matrix->ne[0], 512);
    if (ggml_backend_dev_supports_op(cpu, ggml_mul_mat(context.get(), weight, rows))) return *type;
  }
  return ggml_backend_dev_buffer_type(cpu);
}

}  // namespace

Model::Model(const std::string& path) {
  File file(path);
  shape_ = read_shape(file);
  std::vector<ggml_tensor*> plain, matrices;
  const auto norm = [&](const std::string& name, Index size) {
    return plain.emplace_back(file.tensor(name + ".weight", {size}));
  };
  const auto matrix = [&](const std::string& name, Index inputs, Index outputs) {
    return matrices.emplace_back(file.tensor(name + ".weight", {inputs, outputs}));
  };
  const auto optional = [&](const std::string& name, Index size) {
    ggml_tensor* const found = file.tensor(name, {size}, /*may_be_absent=*/true);
    if (found != nullptr) plain.push_back(found);
    return found;
  };

  const auto [hidden_size, kv_width, query_width] =
      std::tuple(shape_.hidden_size, shape_.kv_width(), shape_.heads * shape_.head_dim);
  const auto head_norm = [&](const std::string& name) {
    return shape_.qk_norm ? norm(name, shape_.head_dim) : nullptr;
  };
  ggml_tensor* const rope_factors = optional("rope_freqs.weight", shape_.head_dim / 2);
  for (Index l = 0; l < shape_.layers; ++l) {
    const std::string block = fmt::format("blk.{}.", l);
    layers_.push_back({.attention_norm = norm(block + "attn_norm", hidden_size),
                       .query = matrix(block + "attn_q", hidden_size, query_width),
                       .key = matrix(block + "attn_k", hidden_size, kv_width),
                       .value = matrix(block + "attn_v", hidden_size, kv_width),
                       .query_bias = optional(block + "attn_q.bias", query_width),
                       .key_bias = optional(block + "attn_k.bias", kv_width),
                       .value_bias = optional(block + "attn_v.bias", kv_width),
                       .query_norm = head_norm(block + "attn_q_norm"),
                       .key_norm = head_norm(block + "attn_k_norm"),
                       .rope_factors = rope_factors,
                       .output = matrix(block + "attn_output", query_width, hidden_size),
                       .feed_forward_norm = norm(block + "ffn_norm", hidden_size),
                       .gate = matrix(block + "ffn_gate", hidden_size, shape_.intermediate_size),
                       .up = matrix(block + "ffn_up", hidden_size, shape_.intermediate_size),
                       .down = matrix(block + "ffn_down", shape_.intermediate_size, hidden_size)});
  }
  output_norm_ = norm("output_norm", hidden_size);
  shape_.vocabulary = file.rows_of("token_embd.weight");
  embedding_ = plain.emplace_back(file.tensor("token_embd.weight", {hidden_size, shape_.vocabulary}));
  classifier_ = file.tensor("output.weight", {hidden_size, shape_.vocabulary}, /*may_be_absent=*/true);
  if (classifier_ != nullptr) {
    matrices.push_back(classifier_);
  } else {
    classifier_ = embedding_;
  }

  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  std::map<ggml_backend_buffer_type_t, std::vector<ggml_tensor*>> placed;
  placed[ggml_backend_dev_buffer_type(cpu)] = std::move(plain);
  for (ggml_tensor* tensor : matrices) placed[buffer_type_of(cpu, tensor)].push_back(tensor);
  for (auto& [type, tensors] : placed) {
    std::ranges::sort(tensors);
    tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
    std::size_t bytes = 0;
    for (const ggml_tensor* tensor : tensors) {
      bytes += GGML_PAD(ggml_backend_buft_get_alloc_size(type, tensor), ggml_backend_buft_get_alignment(type));
    }
    auto& buffer = buffers_.emplace_back(ggml_backend_buft_alloc_buffer(type, bytes));
    if (!buffer) file.fail("not enough memory for the weights: {} bytes", bytes);
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_tallocr allocator = ggml_tallocr_new(buffer.get());
    for (ggml_tensor* tensor : tensors) {
      ggml_tallocr_alloc(&allocator, tensor);
      file.read(tensor);
    }
  }
  tensors_ = file.take_tensors();
}

std::size_t Model::bytes() const {
  std::size_t sum = 0;
  for (const auto& buffer : buffers_) sum += ggml_backend_buffer_get_size(buffer.get());
  return sum;
}

}  // namespace ggml_engine
