#include <omp.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "examples/llama/kernels/cpu/isa.hpp"
#include "examples/llama/kernels/cpu/large_pages.hpp"
#include "examples/llama/kernels/cpu/packed_weights.hpp"

namespace llama {
namespace {

using Type = dnnl::memory::data_type;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::desc plain(Index rows, Index width, Type type) {
  return {{rows, width}, type, dnnl::memory::format_tag::ab};
}

/// oneDNN takes its number of threads from OpenMP, both when it creates a primitive and when it runs it.
class OpenMpThreads {
 public:
  explicit OpenMpThreads(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~OpenMpThreads() { omp_set_num_threads(before_); }
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;

 private:
  int before_;
};

struct ProductShape {
  Index rows, in, out;
  Type type, y_type;
  bool bias, accumulate;
  int threads;
  auto operator<=>(const ProductShape&) const = default;
};

dnnl::matmul::primitive_desc describe(const ProductShape& shape, const dnnl::memory::desc& weights) {
  const auto x = plain(shape.rows, shape.in, shape.type);
  const auto y = plain(shape.rows, shape.out, shape.y_type);
  const auto bias = shape.bias ? plain(1, shape.out, Type::f32) : dnnl::memory::desc();
  dnnl::primitive_attr attributes;
  if (shape.accumulate) {
    dnnl::post_ops add;
    add.append_sum();
    attributes.set_post_ops(add);
  }
#if DNNL_VERSION_MAJOR < 3
  const auto operation = shape.bias ? dnnl::matmul::desc(x, weights, bias, y) : dnnl::matmul::desc(x, weights, y);
  return {operation, attributes, cpu_engine()};
#else
  if (shape.bias) return {cpu_engine(), x, weights, bias, y, attributes};
  return {cpu_engine(), x, weights, y, attributes};
#endif
}

/// The primitive of a shape. All layers of that shape share it, and it stays until the thread ends: creating one
/// costs 0.2 to 0.4 ms (0.01 s for the very first), about what it takes to multiply 30 rows at dim 768. Its scratch
/// memory is that of the thread which has made it, so threads do not share it.
const dnnl::matmul& product(const ProductShape& shape, const dnnl::memory::desc& weights) {
  static thread_local std::map<ProductShape, dnnl::matmul> products;
  const auto found = products.find(shape);
  if (found != products.end()) return found->second;
  return products.emplace(shape, describe(shape, weights)).first->second;
}

/// Rows that one primitive multiplies when `rows` are left. Pruning brings any number of rows, so large numbers are cut
/// into a few sizes; the rate is flat from 8 rows on. The last up to 128, where the kernel for panels does not take
/// them, are one exact piece: cutting a few rows further would read all weights once per piece, and they are bound by
/// that reading.
Index piece(Index rows) {
  for (const Index size : {Index{1024}, Index{512}, Index{256}, Index{128}}) {
    if (rows >= size) return size;
  }
  return rows;
}

template <class T>
constexpr Type type_of = std::is_same_v<T, float> ? Type::f32 : Type::bf16;

template <class T>
class OneDnnWeights final : public PackedWeights {
 public:
  OneDnnWeights(const UnpackedWeights<T>& from, const dnnl::memory::desc& packed)
      : in_(from.in),
        out_(from.out),
        memory_(large_page_memory(packed.get_size(), Pages::together)),
        weights_(packed, cpu_engine(), memory_.get()) {
    // W is [out x in]; the product needs [in x out], which is the same memory read the other way.
    const dnnl::memory::desc source({in_, out_}, type_of<T>, dnnl::memory::format_tag::ba);
    dnnl::memory unpacked(source, cpu_engine(), const_cast<T*>(from.weights.data()));
    dnnl::stream stream(cpu_engine());
    dnnl::reorder(unpacked, weights_).execute(stream, unpacked, weights_);
    stream.wait();
    constexpr auto tag =
        std::is_same_v<T, float> ? dnnl::memory::format_tag::BA16a64b : dnnl::memory::format_tag::BA16a64b2a;
    const dnnl::memory::desc panels({in_, out_}, type_of<T>, tag);
    if (packed != panels || in_ % Panels<T>::depth != 0) return;
    const bool amx = std::is_same_v<T, Eigen::bfloat16> && onednn_has_amx();
    panel_rows_ = amx ? few_product_rows : panel_block_rows;
  }

  void multiply(const void* x, Index rows, const Output& output, int threads) const override {
    const auto* from = static_cast<const T*>(x);
    auto* to = static_cast<std::byte*>(output.y);
    const Index y_bytes = out_ * static_cast<Index>(output.is_float ? sizeof(float) : sizeof(T));
    for (Index count; rows > 0; rows -= count, from += count * in_, to += count * y_bytes) {
      const bool in_panels = rows <= panel_rows_;
      count = in_panels ? rows : piece(rows);
      const Output part{to, output.width, output.bias, output.is_float, output.accumulate};
      if (in_panels) {
        const Panels<T> panels{static_cast<const T*>(weights_.get_data_handle()), in_, out_};
        multiply_panels(panel_kernel_, panels, from, rows, part, threads);
      } else {
        multiply_by_onednn(from, count, part, threads);
      }
    }
  }

 private:
  void multiply_by_onednn(const T* x, Index rows, const Output& output, int threads) const {
    const OpenMpThreads scope(threads);
    const Type y_type = output.is_float ? Type::f32 : type_of<T>;
    const bool bias = output.bias != nullptr;
    const ProductShape shape{rows, in_, out_, type_of<T>, y_type, bias, output.accumulate, threads};
    std::unordered_map<int, dnnl::memory> arguments{
        {DNNL_ARG_SRC, {plain(rows, in_, type_of<T>), cpu_engine(), const_cast<T*>(x)}},
        {DNNL_ARG_WEIGHTS, weights_},
        {DNNL_ARG_DST, {plain(rows, out_, y_type), cpu_engine(), output.y}}};
    if (bias) {
      arguments.insert({DNNL_ARG_BIAS, {plain(1, out_, Type::f32), cpu_engine(), const_cast<float*>(output.bias)}});
    }
    dnnl::stream stream(cpu_engine());
    product(shape, weights_.get_desc()).execute(stream, arguments);
    stream.wait();
  }

  Index in_;
  Index out_;
  std::shared_ptr<std::byte> memory_;
  dnnl::memory weights_;  // in `memory_`
  PanelKernel panel_kernel_ = panel_kernel<T>();
  Index panel_rows_ = 0;  ///< up to so many rows the kernel is as fast as oneDNN or faster
};

}  // namespace

template <class T>
std::unique_ptr<const PackedWeights> pack_for_onednn(const UnpackedWeights<T>& weights, int threads) {
  // With less it is slower than the kernels for panels: in bf16 always, in f32 for up to some 256 rows. And its threads
  // share the sums of a few rows in f32, whose bits then depend on how many threads there are.
  if (!usable(std::is_same_v<T, float> ? Isa::avx512 : Isa::avx512_bf16)) return nullptr;
  const OpenMpThreads scope(threads);
  // The layout that oneDNN chooses depends neither on the number of rows nor on the bias.
  const ProductShape usual{128, weights.in, weights.out, type_of<T>, type_of<T>, false, false, threads};
  const dnnl::memory::desc any({weights.in, weights.out}, type_of<T>, dnnl::memory::format_tag::any);
  try {
    const auto chosen = describe(usual, any);
    if (std::string_view(chosen.impl_info_str()).starts_with("ref")) return nullptr;
    return std::make_unique<OneDnnWeights<T>>(weights, chosen.weights_desc());
  } catch (const dnnl::error&) {  // no such kernel
    return nullptr;
  }
}

template std::unique_ptr<const PackedWeights> pack_for_onednn(const UnpackedWeights<float>&, int);
template std::unique_ptr<const PackedWeights> pack_for_onednn(const UnpackedWeights<Eigen::bfloat16>&, int);

bool onednn_multiplies_int8(int threads) {
  static const bool fast = [&] {
    if (!onednn_has_amx()) return false;  // the kernels for panels are faster
    const OpenMpThreads scope(threads);
    try {
      const ProductShape usual{128, 64, 64, Type::u8, Type::s32, false, false, threads};
      const dnnl::memory::desc any({64, 64}, Type::s8, dnnl::memory::format_tag::BA16a64b4a);
      return !std::string_view(describe(usual, any).impl_info_str()).starts_with("ref");
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return fast;
}

void multiply_int8(const Panels<std::int8_t>& weights, const std::uint8_t* x, Index x_stride, Index rows,
                   std::int32_t* sums, int threads) {
  const OpenMpThreads scope(threads);
  // All of a row of x, and zeros of the panels behind the last input: oneDNN's fast kernels take no other stride.
  const dnnl::memory::desc panels({x_stride, weights.out}, Type::s8, dnnl::memory::format_tag::BA16a64b4a);
  const ProductShape shape{rows, x_stride, weights.out, Type::u8, Type::s32, false, false, threads};
  dnnl::stream stream(cpu_engine());
  product(shape, panels)
      .execute(stream, {{DNNL_ARG_SRC, {plain(rows, x_stride, Type::u8), cpu_engine(), const_cast<std::uint8_t*>(x)}},
                        {DNNL_ARG_WEIGHTS, {panels, cpu_engine(), const_cast<std::int8_t*>(weights.data)}},
                        {DNNL_ARG_DST, {plain(rows, weights.out, Type::s32), cpu_engine(), sums}}});
  stream.wait();
}

}  // namespace llama
