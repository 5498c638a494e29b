#include "examples/llama/files/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <random>
#include <utility>

namespace llama {
namespace {

constexpr std::string_view cannot_write = "the file cannot be written";

/// Puts off the signals that end a program from outside, for all its threads, while a temporary file exists.
class SignalsHeld {
 public:
  SignalsHeld() {
    arrived = 0;
    struct sigaction note {};
    note.sa_handler = [](int signal) { arrived = signal; };
    note.sa_flags = SA_RESTART;
    for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &note, &before_[i]);
  }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;
  ~SignalsHeld() {
    for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &before_[i], nullptr);
    if (arrived != 0) ::raise(arrived);
  }

 private:
  static constexpr std::array signals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  static inline volatile std::sig_atomic_t arrived = 0;

  std::array<struct sigaction, signals.size()> before_{};
};

/// A new file with a name that nobody can foresee; removed with the object unless it was renamed. It has the mode of
/// the regular file at `path`, which it may replace.
class TemporaryFile {
 public:
  TemporaryFile(const Descriptor& folder, const std::filesystem::path& path) : folder_(folder.get()), path_(path) {
    struct stat there {};
    const bool replaces =
        ::fstatat(folder_, path_.filename().c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(there.st_mode);
    const mode_t mode = replaces ? there.st_mode & 0777 : 0666;
    std::random_device random;
    for (int attempts = 0; attempts < 100; ++attempts) {
      name_ = fmt::format(".lazyllm-{:08x}{:08x}", random(), random());
      file_ = Descriptor(::openat(folder_, name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
      if (file_ || errno != EEXIST) break;
    }
    if (!file_) {
      name_.clear();
      fail_last_call(path_, cannot_write);
    }
    // The umask took bits away. A file system without modes fails: the file has the mode of all others there.
    [[maybe_unused]] const bool same = !replaces || ::fchmod(file_.get(), mode) == 0;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!name_.empty()) ::unlinkat(folder_, name_.c_str(), 0);
  }

  void write(std::string_view content) {
    write_all(file_, path_, content);
    if (::fsync(file_.get()) != 0 && errno != EINVAL) fail_last_call(path_, cannot_write);  // EINVAL: cannot be synced
  }

  /// Gives the file the name at the end of its path.
  void rename() {
    if (::renameat(folder_, name_.c_str(), folder_, path_.filename().c_str()) != 0) fail_last_call(path_, cannot_write);
    name_.clear();
  }

 private:
  int folder_;
  const std::filesystem::path& path_;
  std::string name_;
  Descriptor file_;
};

}  // namespace

void write_all(const Descriptor& file, const std::filesystem::path& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_last_call(path, cannot_write);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)) {
  const auto fail = [&](std::string_view reason) {
    throw file_error(fmt::format("{}: {}: {}", path_.string(), cannot_write, reason));
  };
  if (path_.empty()) throw file_error("an output file has an empty name");
  const auto parent = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  folder_ = Descriptor(::open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder_) fail_last_call(path_, cannot_write);
  if (!path_.has_filename()) fail("it names a directory");
  struct stat status {};
  if (::fstatat(folder_.get(), path_.filename().c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
    if (!S_ISREG(status.st_mode)) fail("it is there and not a regular file");
  } else if (errno != ENOENT) {
    fail_last_call(path_, cannot_write);
  }
  const SignalsHeld held;
  TemporaryFile(folder_, path_);  // whether one can be made
}

void OutputFile::commit(std::string_view content) const {
  const SignalsHeld held;
  TemporaryFile file(folder_, path_);
  file.write(content);
  file.rename();
}

}  // namespace llama
