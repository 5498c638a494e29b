#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "lazyllm/aux_cache/aux_cache.hpp"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"

/// \file
/// A sequence as bytes: a header, the depth of each token, and the parked rows in order of position. Little-endian
/// machines only, as all that the library runs on.

namespace lazyllm::detail {

/// What a saved sequence holds beside its rows.
struct SavedSequence {
  Index layers = 0;
  Index steps = 0;
  Index prompt_end = 0;
  std::vector<Depth> depths;  // by position
};

/// The first bytes of a saved sequence.
struct SavedHeader {
  std::uint32_t magic = 0x71657a6c;  // "lzeq"
  std::uint32_t version = 3;
  std::int64_t element = 0;  // an `ElementKind`
  std::int64_t hidden_size = 0;
  std::int64_t layers = 0;
  std::int64_t steps = 0;
  std::int64_t prompt_end = 0;
  std::int64_t tokens = 0;
  std::uint64_t checksum = 0;  // of all bytes, with 0 in this place
};

/// What the rows are made of, whatever the type is called that holds it.
enum class ElementKind : std::int64_t { float32 = 1, float16 = 2, bfloat16 = 3 };

template <class T>
ElementKind kind_of() {
  if constexpr (sizeof(T) == 4) {
    return ElementKind::float32;
  } else {
    constexpr std::uint16_t one = 0x3f80;  // as a bfloat16; 1.875 as a half
    T value;
    std::memcpy(static_cast<void*>(&value), &one, sizeof(one));
    return static_cast<float>(value) == 1 ? ElementKind::bfloat16 : ElementKind::float16;
  }
}

/// The kind in words.
inline const char* name_of(std::int64_t kind) {
  switch (static_cast<ElementKind>(kind)) {
    case ElementKind::float32: return "float";
    case ElementKind::float16: return "half";
    case ElementKind::bfloat16: return "bfloat16";
  }
  return "an unknown type";
}

/// FNV-1a of the bytes of a saved sequence, with 0 in the place of the checksum.
inline std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  constexpr std::size_t first = offsetof(SavedHeader, checksum), last = first + sizeof(std::uint64_t);
  std::uint64_t sum = 0xcbf29ce484222325U;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const bool inside = i >= first && i < last;
    sum = (sum ^ (inside ? 0 : std::to_integer<std::uint64_t>(bytes[i]))) * 0x100000001b3U;
  }
  return sum;
}

/// Writes the checksum into its place.
inline void seal(std::span<std::byte> bytes) {
  const std::uint64_t sum = checksum_of(bytes);
  std::memcpy(bytes.data() + offsetof(SavedHeader, checksum), &sum, sizeof(sum));
}

/// Positions of the tokens that have a parked row, ascending.
template <ParksRows Aux>
std::vector<Position> parked_positions(const SavedSequence& saved) {
  std::vector<Position> positions;
  for (std::size_t i = 0; i < saved.depths.size(); ++i) {
    if (saved.depths[i] < saved.layers) positions.push_back(static_cast<Position>(i));
  }
  return positions;
}

/// The number of bytes of `rows` parked rows.
template <ParksRows Aux>
std::size_t row_bytes(const Aux& aux, std::size_t rows) {
  return rows * to_size(aux.hidden_size()) * sizeof(typename Aux::value_type);
}

/// The bytes of a sequence: header, depths, parked rows. Waits for the context's work.
template <Backend Context, ParksRows Aux>
std::vector<std::byte> save_sequence(Context& context, const Aux& aux, const SavedSequence& saved) {
  using T = typename Aux::value_type;
  const SavedHeader header{.element = static_cast<std::int64_t>(kind_of<T>()),
                           .hidden_size = aux.hidden_size(),
                           .layers = saved.layers,
                           .steps = saved.steps,
                           .prompt_end = saved.prompt_end,
                           .tokens = std::ssize(saved.depths)};
  aux.check(context);
  const std::vector<Position> positions = parked_positions<Aux>(saved);
  const std::size_t depth_bytes = saved.depths.size() * sizeof(Depth);
  std::vector<std::byte> bytes(sizeof(header) + depth_bytes + row_bytes(aux, positions.size()));
  std::memcpy(bytes.data(), &header, sizeof(header));
  if (depth_bytes > 0) std::memcpy(bytes.data() + sizeof(header), saved.depths.data(), depth_bytes);
  if (positions.empty()) {
    seal(bytes);
    return bytes;
  }
  std::vector<Index> slots, rows;
  for (const Position position : positions) {
    rows.push_back(std::ssize(rows));
    slots.push_back(aux.slot(position));
  }
  typename Context::template Buffer<T> gathered;
  gathered.reserve(context, std::ssize(rows), aux.hidden_size());
  const RowsView<T> target = gathered.rows().subrows(0, std::ssize(rows));
  copy_rows(context, RowsView<const T>(aux.rows()), slots, target, rows);
  std::vector<T> values(to_size(target.rows * target.width));
  copy_to_host(context, RowsView<const T>(target), values.data());
  std::memcpy(bytes.data() + sizeof(header) + depth_bytes, values.data(), values.size() * sizeof(T));
  seal(bytes);
  return bytes;
}

/// Reads the header of a version that is known.
inline SavedHeader read_header(std::span<const std::byte> bytes) {
  constexpr const char* where = "Sequence::restore: ";
  SavedHeader header;
  const SavedHeader expected;
  if (bytes.size() < sizeof(header)) {
    fail(where, bytes.size(), " bytes is out of range, at least ", sizeof(header));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != expected.magic) fail(where, "the bytes are not those of a saved sequence");
  if (header.version != expected.version) {
    fail(where, "version ", header.version, " is not known, it must be ", expected.version);
  }
  return header;
}

/// Elements of the saved rows.
inline Index saved_hidden_size(std::span<const std::byte> bytes) { return read_header(bytes).hidden_size; }

/// Reads and checks all but the rows.
template <ParksRows Aux>
SavedSequence read_sequence(std::span<const std::byte> bytes, const Aux& aux) {
  constexpr const char* where = "Sequence::restore: ";
  const SavedHeader header = read_header(bytes);
  const auto element = static_cast<std::int64_t>(kind_of<typename Aux::value_type>());
  if (header.element != element || header.hidden_size != aux.hidden_size()) {
    fail(where, "rows of ", header.hidden_size, " elements of type ", name_of(header.element),
         " do not fit an Aux Cache of ", aux.hidden_size(), " elements of type ", name_of(element));
  }
  const auto room = static_cast<std::int64_t>((bytes.size() - sizeof(header)) / sizeof(Depth));
  if (header.tokens < 0 || header.tokens > room) {
    fail(where, header.tokens, " tokens is out of range 0 to ", room, " of ", bytes.size(), " bytes");
  }
  if (header.layers < 1 || header.layers > max_layers || header.steps < 0) {
    fail(where, header.layers, " layers and ", header.steps, " steps are out of range 1 to ", max_layers,
         " and from 0");
  }
  if (header.prompt_end < 0 || header.prompt_end > header.tokens) {
    fail(where, "prompt_end ", header.prompt_end, " is out of range 0 to ", header.tokens);
  }
  SavedSequence saved{header.layers, header.steps, header.prompt_end, std::vector<Depth>(to_size(header.tokens))};
  if (!saved.depths.empty()) {
    std::memcpy(saved.depths.data(), bytes.data() + sizeof(header), saved.depths.size() * sizeof(Depth));
  }
  for (std::size_t i = 0; i < saved.depths.size(); ++i) {
    if (saved.depths[i] < 1 || saved.depths[i] > saved.layers) {
      fail(where, "depth ", saved.depths[i], " of position ", i, " is out of range 1 to ", saved.layers);
    }
  }
  const std::size_t size =
      sizeof(header) + saved.depths.size() * sizeof(Depth) + row_bytes(aux, parked_positions<Aux>(saved).size());
  if (bytes.size() != size) fail(where, bytes.size(), " bytes, the header asks for ", size);
  if (header.checksum != checksum_of(bytes)) fail(where, "the bytes are damaged: their checksum is another one");
  if (aux.parked_rows() != 0) fail(where, "the Aux Cache holds ", aux.parked_rows(), " rows, it must be empty");
  return saved;
}

/// Parks the saved rows in `aux`.
template <Backend Context, ParksRows Aux>
void restore_rows(Context& context, std::span<const std::byte> bytes, const SavedSequence& saved, Aux& aux) {
  using T = typename Aux::value_type;
  const std::vector<Position> positions = parked_positions<Aux>(saved);
  if (positions.empty()) return;
  std::vector<T> values(positions.size() * to_size(aux.hidden_size()));
  std::memcpy(static_cast<void*>(values.data()), bytes.data() + bytes.size() - values.size() * sizeof(T),
              values.size() * sizeof(T));
  typename Context::template Buffer<T> rows;
  rows.reserve(context, std::ssize(positions), aux.hidden_size());
  const RowsView<T> source = rows.rows().subrows(0, std::ssize(positions));
  copy_from_host(context, static_cast<const T*>(values.data()), source);
  std::vector<Index> from;
  for (std::size_t i = 0; i < positions.size(); ++i) from.push_back(static_cast<Index>(i));
  std::vector<RowCopy<T>> copies;
  aux.acquire(context, positions);
  aux.park(source, from, copies);
  copy_rows(context, std::span<const RowCopy<T>>(copies));
}

}  // namespace lazyllm::detail
