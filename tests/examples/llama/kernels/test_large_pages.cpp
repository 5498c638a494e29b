#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "examples/llama/kernels/cpu/large_pages.hpp"

using namespace llama;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

/// The flags of the mapping that `pointer` lies in, as Linux tells them.
std::string mapping_flags(const void* pointer) {
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream range(line);
    std::uintptr_t first = 0, last = 0;
    char dash = 0;
    if (range >> std::hex >> first >> dash >> last && dash == '-')
      here = first <= address(pointer) && address(pointer) < last;
    if (here && line.starts_with("VmFlags:")) return line;
  }
  return "";
}

}  // namespace

TEST_CASE("large pages: pieces of all sizes are apart, and keep what is written") {
  std::vector<std::shared_ptr<std::byte>> pieces;
  std::vector<std::size_t> sizes;
  for (int round = 0; round < 3; ++round) {
    for (const std::size_t bytes :
         {std::size_t{1}, std::size_t{100}, mebibyte, 2 * mebibyte, 9 * mebibyte, 40 * mebibyte}) {
      sizes.push_back(bytes);
      pieces.push_back(large_page_memory(bytes, round == 1 ? Pages::own : Pages::together));
      CHECK(address(pieces.back().get()) % 64 == 0);
      const auto mark = static_cast<int>(pieces.size());
      std::memset(pieces.back().get(), mark, std::min<std::size_t>(bytes, 4096));
      std::memset(pieces.back().get() + bytes - 1, mark, 1);
    }
    pieces[static_cast<std::size_t>(round)] = nullptr;  // the others stay
  }
  for (std::size_t i = 3; i < pieces.size(); ++i) {
    CAPTURE(i);
    CHECK(std::to_integer<std::size_t>(pieces[i].get()[0]) == i + 1);
    CHECK(std::to_integer<std::size_t>(pieces[i].get()[sizes[i] - 1]) == i + 1);
    for (std::size_t j = 3; j < i; ++j) {
      const std::byte* const a = pieces[i].get();
      const std::byte* const b = pieces[j].get();
      CHECK((a + sizes[i] <= b || b + sizes[j] <= a));
    }
  }
}

TEST_CASE("large pages: Linux is asked for them") {
  if (!large_pages || !std::filesystem::exists("/sys/kernel/mm/transparent_hugepage/enabled") ||
      mapping_flags(&mebibyte).empty()) {
    MESSAGE("skipped: this system tells nothing about large pages");
    return;
  }
  for (const std::size_t bytes : {std::size_t{1000}, 10 * mebibyte}) {
    const std::shared_ptr<std::byte> memory = large_page_memory(bytes, Pages::together);
    *memory = std::byte{1};
    CHECK(mapping_flags(memory.get()).find(" hg") != std::string::npos);
  }
}

TEST_CASE("large pages: a block goes with the last of its pieces, and a small piece of its own holds none") {
  std::vector<std::shared_ptr<std::byte>> pieces;
  for (int i = 0; i < 40; ++i) pieces.push_back(large_page_memory(mebibyte, Pages::together));
  const std::weak_ptr<std::byte> first_block = pieces.front(), last_block = pieces.back();
  const std::shared_ptr<std::byte> own = large_page_memory(1000, Pages::own);
  pieces.erase(pieces.begin() + 1, pieces.end());
  CHECK_FALSE(first_block.expired());
  CHECK(last_block.expired());
  pieces.clear();
  CHECK(first_block.expired());
}

TEST_CASE("large pages: an array that no memory can hold") {
  for (const Pages pages : {Pages::own, Pages::together}) {
    for (const Index count : {Index{-1}, std::numeric_limits<Index>::max() / 4, std::numeric_limits<Index>::max()}) {
      CHECK_THROWS_AS(large_page_array<float>(count, pages), std::bad_alloc);
    }
    CHECK_THROWS_AS(large_page_memory(std::numeric_limits<std::size_t>::max() - 100, pages), std::bad_alloc);
    CHECK_NOTHROW(large_page_array<float>(0, pages));
  }
}
