#include "examples/llama/kernels/cpu/large_pages.hpp"

#include <mutex>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace llama {
namespace {

constexpr std::size_t page = std::size_t{2} << 20;
constexpr std::size_t shared_block = 16 * page;

std::shared_ptr<std::byte> aligned(std::size_t bytes, std::align_val_t alignment) {
  auto* const memory = static_cast<std::byte*>(::operator new(bytes, alignment));
  return {memory, [alignment](std::byte* pieces) { ::operator delete(pieces, alignment); }};
}

std::shared_ptr<std::byte> whole_pages(std::size_t bytes) {
  bytes = (bytes + page - 1) / page * page;
  std::shared_ptr<std::byte> memory = aligned(bytes, std::align_val_t(page));
#ifdef __linux__
  ::madvise(memory.get(), bytes, MADV_HUGEPAGE);  // where it fails, pages are small
#endif
  return memory;
}

/// Of a block that smaller pieces share.
std::shared_ptr<std::byte> piece_of_block(std::size_t bytes) {
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
  used += (bytes + 63) / 64 * 64;
  return piece;
}

}  // namespace

std::shared_ptr<std::byte> large_page_memory(std::size_t bytes, Pages pages) {
  if (bytes > std::numeric_limits<std::size_t>::max() - page) throw std::bad_alloc();  // rounded up it would be little
  if (large_pages && bytes >= page) return whole_pages(bytes);
  if (large_pages && pages == Pages::together) return piece_of_block(bytes);
  return aligned(bytes, std::align_val_t(64));
}

}  // namespace llama
