#include "examples/llama/program/fingerprint.hpp"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "examples/llama/base.hpp"

namespace llama {

void Fingerprint::add(std::string_view text) {
  mix(std::to_string(text.size()) + ':');  // keeps "ab", "c" apart from "a", "bc"
  mix(text);
}

void Fingerprint::mix(std::string_view bytes) {
  for (const char c : bytes) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
}

std::uint64_t model_fingerprint(const std::filesystem::path& model) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(model)) {
    for (const auto& entry : std::filesystem::directory_iterator(model)) {
      const auto& path = entry.path();
      if (path.extension() == ".safetensors" || path.filename() == "config.json") files.push_back(path);
    }
    std::ranges::sort(files);
  } else {
    files.push_back(model);
  }
  Fingerprint fingerprint;
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    const auto size = static_cast<std::streamoff>(file.tellg());
    if (!file) fail("the file ", path.string(), " cannot be read");
    fingerprint.add(path.filename().string());
    fingerprint.add(std::to_string(size));
    constexpr std::streamoff sample_size = 1 << 16;
    constexpr int samples = 16;
    std::string sample;
    for (int i = 0; i < samples; ++i) {
      file.seekg(std::max<std::streamoff>(0, size - sample_size) / (samples - 1) * i);
      sample.resize(static_cast<std::size_t>(std::min(size, sample_size)));
      if (!file.read(sample.data(), std::ssize(sample))) fail("the file ", path.string(), " cannot be read");
      fingerprint.add(sample);
    }
  }
  return fingerprint.value();
}

}  // namespace llama
