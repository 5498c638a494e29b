#include "examples/llama/checkpoint/mapped_file.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/files/input_file.hpp"

namespace llama {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file = open_input(path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_last_call(path, "cannot read the file's size");
  if (status.st_size == 0) reject(path.string(), "the file is empty");
  const auto size = static_cast<std::size_t>(status.st_size);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) fail_last_call(path, "cannot map the file into memory");
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace llama
