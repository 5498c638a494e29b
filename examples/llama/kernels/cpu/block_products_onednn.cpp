#include <map>
#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "examples/llama/kernels/cpu/block_products.hpp"
#include "examples/llama/kernels/cpu/isa.hpp"

namespace llama {
namespace {

using dnnl::memory;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

template <class S>
constexpr auto type_of = std::is_same_v<S, float> ? memory::data_type::f32 : memory::data_type::bf16;

/// c = a b of float: `[rows x depth]` times `[depth x columns]`, b perhaps transposed in memory.
struct Shape {
  memory::data_type type;
  Index rows, depth, columns;
  bool transposed;
  auto operator<=>(const Shape&) const = default;
};

/// The primitive of a shape with what it is called with, of one thread.
class Product {
 public:
  explicit Product(const Shape& shape)
      : description_(describe(shape)),
        primitive_(description_),
        scratch_bytes_(description_.scratchpad_desc().get_size()),
        arguments_{{DNNL_ARG_SRC, empty(description_.src_desc())},
                   {DNNL_ARG_WEIGHTS, empty(description_.weights_desc())},
                   {DNNL_ARG_DST, empty(description_.dst_desc())},
                   {DNNL_ARG_SCRATCHPAD, empty(description_.scratchpad_desc())}} {}

  std::string_view implementation() const { return description_.impl_info_str(); }

  void run(const void* a, const void* b, float* c) {
    thread_local dnnl::stream stream(cpu_engine());
    // oneDNN reads a and b only.
    arguments_.at(DNNL_ARG_SRC).set_data_handle(const_cast<void*>(a));
    arguments_.at(DNNL_ARG_WEIGHTS).set_data_handle(const_cast<void*>(b));
    arguments_.at(DNNL_ARG_DST).set_data_handle(c);
    arguments_.at(DNNL_ARG_SCRATCHPAD).set_data_handle(scratchpad(scratch_bytes_));
    primitive_.execute(stream, arguments_);
    stream.wait();
  }

 private:
  static dnnl::matmul::primitive_desc describe(const Shape& shape) {
    const memory::desc a({shape.rows, shape.depth}, shape.type, memory::format_tag::ab);
    const memory::desc b({shape.depth, shape.columns}, shape.type,
                         shape.transposed ? memory::format_tag::ba : memory::format_tag::ab);
    const memory::desc c({shape.rows, shape.columns}, memory::data_type::f32, memory::format_tag::ab);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // the library's own is of the creating thread
#if DNNL_VERSION_MAJOR < 3
    return {dnnl::matmul::desc(a, b, c), attributes, cpu_engine()};
#else
    return {cpu_engine(), a, b, c, attributes};
#endif
  }

  static memory empty(const memory::desc& description) { return {description, cpu_engine(), nullptr}; }

  /// At least `bytes`, shared by the products of a thread.
  static void* scratchpad(std::size_t bytes) {
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    thread_local std::vector<Line> lines;
    if (lines.size() * sizeof(Line) < bytes) lines.resize((bytes + sizeof(Line) - 1) / sizeof(Line));
    return lines.data();
  }

  dnnl::matmul::primitive_desc description_;
  dnnl::matmul primitive_;
  std::size_t scratch_bytes_;
  std::unordered_map<int, memory> arguments_;
};

/// Made once for each thread; oneDNN shares the code between them. Creating the first of a shape takes 0.3 ms.
Product& product(const Shape& shape) {
  thread_local std::map<Shape, Product> products;
  return products.try_emplace(shape, shape).first->second;
}

}  // namespace

template <class S>
bool OneDnnProducts<S>::supported() {
  static const bool known = [] {
    try {
      // Of oneDNN's matrix products only those on blocks, brgemm, sum up every row in the same order wherever it
      // stands: on x86, elsewhere that is not known. It computes with bfloat16 on AVX-512 without instructions for it,
      // too, at a third of float's rate.
      return usable(std::is_same_v<S, float> ? Isa::avx2 : Isa::avx512_bf16) &&
             Product({type_of<S>, 128, 64, max_block_keys, true}).implementation().starts_with("brg");
    } catch (const dnnl::error&) {  // no such kernel
      return false;
    }
  }();
  return known;
}

template <class S>
void OneDnnProducts<S>::score(Index rows, Index keys, Index width, const S* queries, const S* key_rows, float* scores) {
  product({type_of<S>, rows, width, keys, true}).run(queries, key_rows, scores);
}

template <class S>
void OneDnnProducts<S>::mix(Index rows, Index keys, Index width, const S* weights, const S* values, float* sums) {
  product({type_of<S>, rows, keys, width, false}).run(weights, values, sums);
}

template struct OneDnnProducts<float>;
template struct OneDnnProducts<Eigen::bfloat16>;

}  // namespace llama
