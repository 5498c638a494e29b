#include "examples/llama/program/resumable_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <exception>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/files/input_file.hpp"
#include "examples/llama/files/output_file.hpp"
#include "examples/llama/program/command_line.hpp"

namespace llama {
namespace {

using Json = nlohmann::json;

constexpr std::string_view header_start = "{\"settings\":";

/// "keep was 0.4, is 0.5; seeds was 5, is absent".
std::string differences(const Json& before, const Json& now) {
  std::string text;
  const auto add = [&](const std::string& name) {
    const auto shown_in = [&](const Json& settings) {
      return settings.contains(name) ? shown(settings[name]) : std::string("absent");
    };
    if (shown_in(before) == shown_in(now)) return;
    text += fmt::format("{}{} was {}, is {}", text.empty() ? "" : "; ", name, shown_in(before), shown_in(now));
  };
  for (const auto& [name, value] : before.items()) add(name);
  for (const auto& [name, value] : now.items()) {
    if (!before.contains(name)) add(name);
  }
  return text;
}

/// The log's file, new if there is none, which no other program has until it is closed.
Descriptor open_alone(const std::filesystem::path& path) {
  for (;;) {
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    if (!file && errno == ELOOP) reject(path.string(), "is a link, not a regular file");
    if (!file && errno == EISDIR) reject(path.string(), "not a regular file");
    if (!file) fail_last_call(path, "the file cannot be written");
    struct stat opened {
    }, named{};
    if (::fstat(file.get(), &opened) != 0) fail_last_call(path, "cannot read the file's size");
    if (!S_ISREG(opened.st_mode)) reject(path.string(), "not a regular file");
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) reject(path.string(), "is in use by another program that runs now");
      fail_last_call(path, "the file cannot be locked");
    }
    // The program that had the file may have removed it in between.
    if (::stat(path.c_str(), &named) == 0 && named.st_ino == opened.st_ino && named.st_dev == opened.st_dev)
      return file;
  }
}

}  // namespace

ResumableLog::ResumableLog(std::filesystem::path path, bool resume)
    : path_(std::move(path)), file_(open_alone(path_)), earlier_(read_rest(file_, path_)) {
  if (!earlier_.empty() && !resume) {
    reject(path_.string(), "holds earlier work: go on with it by --resume, or remove the file");
  }
}

ResumableLog::~ResumableLog() {
  if (size_ == 0 && earlier_.empty()) ::unlink(path_.c_str());
}

void ResumableLog::start(const nlohmann::ordered_json& settings, const OnLine& on_line) {
  const std::string& text = earlier_;
  header_ = json_text({{"settings", settings}}) + '\n';
  const std::size_t whole = text.rfind('\n') + 1;  // 0 if there is none
  // A header that was cut off holds no work. What ends before its name may be the start of another file and stays.
  if (whole == 0 && !text.empty() && !(text.starts_with(header_start) && header_.starts_with(text))) {
    reject(path_.string(), "was not written by this program");
  }
  Index number = 0;
  for (std::size_t begin = 0; begin < whole;) {
    const std::size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    const std::string place = fmt::format("{}:{}", path_.string(), ++number);
    begin = end + 1;
    if (number == 1) {
      check_header(line, settings);
      continue;
    }
    const Json json = parse_json(std::as_bytes(std::span(line)), place);
    try {
      on_line(json);
    } catch (const std::bad_alloc&) {
      throw;  // the line is not to blame
    } catch (const Json::exception& error) {
      reject(place, "does not hold what this program writes: {}", plain_reason(error));
    } catch (const std::exception& error) {
      reject(place, "does not hold what this program writes: {}", plain_message(error));
    }
  }
  if (whole < text.size() && ::ftruncate(file_.get(), static_cast<off_t>(whole)) != 0) {
    fail_last_call(path_, "the file cannot be written");
  }
  size_ = static_cast<std::int64_t>(whole);
  earlier_.clear();
  if (whole > 0) header_.clear();  // it is there
}

void ResumableLog::check_header(const std::string& line, const nlohmann::ordered_json& settings) const {
  if (!line.starts_with(header_start)) reject(path_.string(), "was not written by this program");
  const Json json = parse_json(std::as_bytes(std::span(line)), path_.string() + ":1");
  const Json& before = json.at("settings");
  const Json now = Json::parse(json_text(settings));
  if (before == now) return;
  if (!before.is_object()) reject(path_.string(), "was not written by this program");
  reject(path_.string(), "was started with other settings: {}; use the same ones, or another file",
         differences(before, now));
}

void ResumableLog::before_next(const nlohmann::ordered_json& line) { header_ += json_text(line) + '\n'; }

void ResumableLog::append(const nlohmann::ordered_json& line) {
  const std::string text = header_ + json_text(line) + '\n';
  try {
    write_all(file_, path_, text);
  } catch (const file_error&) {
    [[maybe_unused]] const int cut = ::ftruncate(file_.get(), size_);  // else the next start drops the torn line
    throw;
  }
  size_ += std::ssize(text);
  header_.clear();
}

}  // namespace llama
