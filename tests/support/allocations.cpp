#include "support/allocations.hpp"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

// Eigen and the OpenMP runtime allocate with malloc, so that is what is counted where the C library lets us stand in
// front of it; elsewhere, and where a sanitizer stands there, only operator new is.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LAZYLLM_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define LAZYLLM_TEST_SANITIZED 1
#endif
#endif

namespace {

std::atomic<long> counted = 0;
std::atomic<long> good_ones = -1;

/// Counts an allocation; false: it has to fail.
bool may_allocate() {
  ++counted;
  return good_ones < 0 || good_ones-- > 0;
}

}  // namespace

namespace lazyllm::test {

long allocations() { return counted; }
void fail_allocation_after(long count) { good_ones = count; }

}  // namespace lazyllm::test

#if defined(__GLIBC__) && !defined(LAZYLLM_TEST_SANITIZED)

bool lazyllm::test::sees_malloc() { return true; }

extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) { return may_allocate() ? __libc_malloc(bytes) : nullptr; }
void* calloc(std::size_t count, std::size_t bytes) { return may_allocate() ? __libc_calloc(count, bytes) : nullptr; }
void* realloc(void* memory, std::size_t bytes) { return may_allocate() ? __libc_realloc(memory, bytes) : nullptr; }
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return may_allocate() ? __libc_memalign(alignment, bytes) : nullptr;
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  *memory = may_allocate() ? __libc_memalign(alignment, bytes) : nullptr;
  return *memory == nullptr ? ENOMEM : 0;
}
}

#else

bool lazyllm::test::sees_malloc() { return false; }

void* operator new(std::size_t bytes) {
  void* memory = may_allocate() ? std::malloc(bytes) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

#endif
