#include "examples/llama/checkpoint/safetensors.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/checkpoint/json.hpp"

namespace llama {
namespace {

using Json = nlohmann::json;

constexpr std::size_t length_bytes = 8;

struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
  const std::string* name = nullptr;
};

/// Bits of one element; empty for types that the format may have added later.
std::optional<std::uint64_t> bits_of(std::string_view dtype) {
  static const std::map<std::string_view, std::uint64_t> bits = {
      {"BOOL", 8}, {"U8", 8},   {"I8", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"I16", 16},
      {"U16", 16}, {"F16", 16}, {"BF16", 16}, {"I32", 32},    {"U32", 32},    {"F32", 32},    {"I64", 64},
      {"U64", 64}, {"F64", 64}, {"C64", 64},  {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  const auto found = bits.find(dtype);
  return found == bits.end() ? std::nullopt : std::optional(found->second);
}

std::uint64_t header_length(std::span<const std::byte> file) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  return length;
}

/// One entry of the header, with `place` as "file, tensor".
class Entry {
 public:
  Entry(const Json& value, std::string place) : value_(value), place_(std::move(place)) {
    if (!value.is_object()) reject(place_, "the entry is {}, expected an object", shown(value));
  }

  std::string dtype() const {
    const Json& value = field("dtype");
    if (!value.is_string()) reject(place_, "\"dtype\" is {}, expected a string", shown(value));
    return value.get<std::string>();
  }

  std::vector<Index> shape() const {
    const Json& value = field("shape");
    bool valid = value.is_array();
    std::vector<Index> sizes;
    for (const Json& size : value) {
      constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<Index>::max());
      valid = valid && size.is_number_unsigned() && size.get<std::uint64_t>() <= most;
      if (!valid) break;
      sizes.push_back(size.get<Index>());
    }
    if (!valid) reject(place_, "\"shape\" is {}, expected a list of sizes", shown(value));
    return sizes;
  }

  Range range(std::size_t payload_bytes) const {
    const Json& value = field("data_offsets");
    if (!value.is_array() || value.size() != 2 || !value[0].is_number_unsigned() || !value[1].is_number_unsigned())
      reject(place_, "\"data_offsets\" is {}, expected two offsets", shown(value));
    const auto begin = value[0].get<std::uint64_t>();
    const auto end = value[1].get<std::uint64_t>();
    if (begin > end || end > payload_bytes)
      reject(place_,
             "\"data_offsets\" is [{}, {}], expected ascending offsets from 0 to {}, the bytes after the header", begin,
             end, payload_bytes);
    return {begin, end};
  }

  void check_size(std::string_view dtype, const std::vector<Index>& shape, std::size_t bytes) const {
    const auto bits = bits_of(dtype);
    if (!bits) return;
    std::uint64_t total = *bits;
    for (const Index size : shape)
      if (__builtin_mul_overflow(total, static_cast<std::uint64_t>(size), &total))
        reject(place_, "the size of shape {} overflows", shown(Json(shape)));
    if (total % 8 != 0 || total / 8 != bytes)
      reject(place_, "shape {} of {} needs {} bits, but \"data_offsets\" spans {} bytes", shown(Json(shape)), dtype,
             total, bytes);
  }

 private:
  const Json& field(const char* name) const {
    const auto found = value_.find(name);
    if (found == value_.end()) reject(place_, "field \"{}\" is missing", name);
    return *found;
  }

  const Json& value_;
  std::string place_;
};

/// The tensors must fill the payload exactly, as the format demands: nothing hidden, nothing shared.
void check_cover(std::vector<Range> ranges, std::size_t payload_bytes, std::string_view place) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::size_t covered = 0;
  for (const Range& range : ranges) {
    if (range.begin < covered)
      reject(place, "tensor {} overlaps another: it starts at offset {}, before {}", shown(*range.name), range.begin,
             covered);
    if (range.begin > covered)
      reject(place, "a hole before tensor {}: it starts at offset {}, expected {}", shown(*range.name), range.begin,
             covered);
    covered = range.end;
  }
  if (covered != payload_bytes)
    reject(place, "the tensors end at offset {}, but {} bytes follow the header", covered, payload_bytes);
}

bool is_plain_file_name(std::string_view name) {
  constexpr std::string_view separators("/\\\0", 3);
  return name.size() > std::string_view(".safetensors").size() && name.ends_with(".safetensors") &&
         name.find_first_of(separators) == std::string_view::npos;
}

}  // namespace

StoredTensors read_safetensors(std::span<const std::byte> file, std::string_view place) {
  constexpr std::string_view lfs_pointer = "version https://git-lfs";
  if (std::ranges::equal(file.first(std::min(file.size(), lfs_pointer.size())), std::as_bytes(std::span(lfs_pointer))))
    reject(place, "the file is a Git LFS pointer in place of the weights, which \"git lfs pull\" fetches");
  if (file.size() < length_bytes)
    reject(place, "the file has {} bytes, a safetensors file has at least {}", file.size(), length_bytes);
  const std::uint64_t length = header_length(file);
  if (length > max_json_bytes) reject(place, "the header claims {} bytes, allowed are {}", length, max_json_bytes);
  if (length > file.size() - length_bytes)
    reject(place, "the header claims {} bytes, but only {} follow (is the file truncated?)", length,
           file.size() - length_bytes);
  const auto text = file.subspan(length_bytes, length);
  const auto payload = file.subspan(length_bytes + length);
  if (text.empty() || text[0] != std::byte{'{'}) reject(place, "the header is not a JSON object");

  const Json header = parse_json(text, place);
  StoredTensors tensors;
  std::vector<Range> ranges;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object() || !std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); }))
        reject(place, "\"__metadata__\" is {}, expected an object of strings", shown(value));
      continue;
    }
    const Entry entry(value, fmt::format("{}, tensor {}", place, shown(name)));
    StoredTensor tensor{.dtype = entry.dtype(), .shape = entry.shape(), .data = {}};
    Range range = entry.range(payload.size());
    tensor.data = payload.subspan(range.begin, range.end - range.begin);
    entry.check_size(tensor.dtype, tensor.shape, tensor.data.size());
    range.name = &tensors.emplace(name, std::move(tensor)).first->first;
    ranges.push_back(range);
  }
  check_cover(std::move(ranges), payload.size(), place);
  return tensors;
}

std::map<std::string, std::string> read_safetensors_index(std::span<const std::byte> json_text,
                                                          std::string_view place) {
  const Json index = parse_json(json_text, place);
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (weight_map == index.end() || !weight_map->is_object())
    reject(place, "field \"weight_map\" is missing or not an object");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>()))
      reject(place, "tensor {} is in file {}, expected a plain file name ending in .safetensors", shown(tensor),
             shown(file));
    files.emplace(tensor, file.get<std::string>());
  }
  return files;
}

}  // namespace llama
