#include "examples/llama/program/resumable_log.hpp"

#include <fmt/format.h>

#include <span>
#include <string_view>
#include <utility>

#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/program/input_files.hpp"

namespace llama {
namespace {

using Json = nlohmann::json;

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

/// The lines of the file that were written to their end. Throws if it is something else's file.
std::string read_whole_lines(const std::filesystem::path& path) {
  constexpr std::string_view start = "{\"settings\":";
  std::string text = read_text(path);
  if (!start.starts_with(text.substr(0, start.size()))) {
    fail("the file ", path.string(), " was not written by this program");
  }
  text.resize(text.rfind('\n') + 1);  // nothing if there is none
  return text;
}

}  // namespace

ResumableLog::ResumableLog(std::filesystem::path path, const nlohmann::ordered_json& settings, bool resume,
                           const OnLine& on_line)
    : path_(std::move(path)) {
  const std::string header = json_text({{"settings", settings}});
  const bool is_there = std::filesystem::exists(path_);
  if (is_there && !std::filesystem::is_regular_file(path_)) fail(path_.string(), " is not a regular file");
  const std::string text = resume && is_there ? read_whole_lines(path_) : "";
  Index number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    const std::string place = fmt::format("{}:{}", path_.string(), ++number);
    begin = end + 1;
    const Json json = parse_json(std::as_bytes(std::span(line)), place);
    try {
      if (number > 1) {
        on_line(json, place);
      } else if (const Json before = json.at("settings"), now = Json::parse(header)["settings"]; before != now) {
        fail("the file ", path_.string(), " was started with other settings: ", differences(before, now),
             "; use the same ones, or another file");
      }
    } catch (const Json::exception& error) {
      fail(place, " does not hold what this program writes: ", error.what());
    }
  }
  if (is_there) std::filesystem::resize_file(path_, text.size());
  stream_.open(path_, std::ios::binary | std::ios::app);
  if (!stream_) fail("the file ", path_.string(), " cannot be written");
  if (text.empty()) append({{"settings", settings}});
}

void ResumableLog::append(const nlohmann::ordered_json& line) {
  stream_ << json_text(line) << '\n' << std::flush;
  if (!stream_) fail("the file ", path_.string(), " cannot be written");
}

}  // namespace llama
