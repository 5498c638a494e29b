#include "examples/llama/checkpoint/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "examples/llama/checkpoint/error.hpp"

namespace llama {
namespace {

/// Closes the descriptor on every way out; the mapping outlives it.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

[[noreturn]] void reject_last_error(const std::filesystem::path& path, std::string_view action) {
  const int code = errno;
  reject(path.string(), "cannot {}: {}", action, std::generic_category().message(code));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe must not block us
  if (file.value() < 0) reject_last_error(path, "open the file");
  struct stat status {};
  if (::fstat(file.value(), &status) != 0) reject_last_error(path, "read the file's size");
  if (!S_ISREG(status.st_mode)) reject(path.string(), "not a regular file");
  if (status.st_size == 0) reject(path.string(), "the file is empty");
  const auto size = static_cast<std::size_t>(status.st_size);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value(), 0);
  if (data == MAP_FAILED) reject_last_error(path, "map the file into memory");
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace llama
