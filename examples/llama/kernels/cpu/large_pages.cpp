#include "examples/llama/kernels/cpu/large_pages.hpp"

#include <mutex>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace llama {
namespace {

constexpr std::size_t page = std::size_t{2} << 20;
constexpr std::size_t shared_block = 16 * page;

std::size_t round_up(std::size_t bytes, std::size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

std::shared_ptr<std::byte> whole_pages(std::size_t bytes) {
  bytes = round_up(bytes, page);
  auto* const memory = static_cast<std::byte*>(::operator new(bytes, std::align_val_t(page)));
#ifdef __linux__
  ::madvise(memory, bytes, MADV_HUGEPAGE);  // where it fails, pages are small
#endif
  return {memory, [](std::byte* pages) { ::operator delete(pages, std::align_val_t(page)); }};
}

}  // namespace

std::shared_ptr<std::byte> large_page_memory(std::size_t bytes) {
  if (bytes > shared_block / 4) return whole_pages(bytes);
  static std::mutex mutex;
  static std::weak_ptr<std::byte> last_block;
  static std::size_t used = 0;
  const std::lock_guard lock(mutex);
  std::shared_ptr<std::byte> block = last_block.lock();
  if (block == nullptr || used + bytes > shared_block) {
    block = whole_pages(shared_block);
    last_block = block;
    used = 0;
  }
  std::shared_ptr<std::byte> piece(block, block.get() + used);
  used += round_up(bytes, 64);
  return piece;
}

}  // namespace llama
