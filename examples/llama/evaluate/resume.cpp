#include "examples/llama/evaluate/resume.hpp"

#include <fmt/format.h>

#include <span>
#include <string_view>

#include "examples/llama/checkpoint/json.hpp"
#include "lazyllm/error.hpp"

namespace lazyllm::llama {

namespace {

using Json = nlohmann::ordered_json;

/// "keep was 0.4, is 0.5; seeds was 5, is absent".
std::string differences(const Json& before, const Json& now) {
  std::string text;
  const auto add = [&](const std::string& name) {
    const auto shown_in = [&](const Json& settings) {
      return settings.contains(name) ? shown(nlohmann::json(settings[name])) : std::string("absent");
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
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) detail::fail("the file ", path.string(), " cannot be read");
  if (!start.starts_with(text.substr(0, start.size()))) {
    detail::fail("the file ", path.string(), " does not hold results of lazyllm-evaluate");
  }
  text.resize(text.rfind('\n') + 1);  // nothing if there is none
  return text;
}

}  // namespace

ResumeFile::ResumeFile(std::filesystem::path path, const Json& settings) : path_(std::move(path)) {
  const std::string header = Json{{"settings", settings}}.dump(-1, ' ', false, Json::error_handler_t::replace);
  const bool is_there = std::filesystem::exists(path_);
  if (is_there && !std::filesystem::is_regular_file(path_)) detail::fail(path_.string(), " is not a regular file");
  const std::string text = is_there ? read_whole_lines(path_) : "";
  Index number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    const std::string place = fmt::format("{}:{}", path_.string(), ++number);
    begin = end + 1;
    try {
      const nlohmann::json json = parse_json(std::as_bytes(std::span(line)), place);
      if (number > 1) {
        auto result = json.get<ItemResult>();
        if (result.runs.empty()) detail::fail(place, ": no runs");
        results_.insert_or_assign(result.id, std::move(result));
      } else if (json != nlohmann::json::parse(header)) {
        detail::fail("the file ", path_.string(),
                     " was started with other settings: ", differences(json.at("settings"), settings),
                     "; use the same ones, or another file");
      }
    } catch (const nlohmann::json::exception& error) {
      detail::fail(place, " does not hold results of lazyllm-evaluate: ", error.what());
    }
  }
  if (is_there) std::filesystem::resize_file(path_, text.size());
  stream_.open(path_, std::ios::binary | std::ios::app);
  if (!stream_) detail::fail("the file ", path_.string(), " cannot be written");
  if (text.empty()) write(header);
}

const ItemResult* ResumeFile::find(const Item& item) const {
  const auto found = results_.find(item.id);
  if (found == results_.end()) return nullptr;
  if (found->second.fingerprint != item.fingerprint) {
    detail::fail(item.place, ": the item ", item.id, " has changed since ", path_.string(),
                 " was started; use another file");
  }
  return &found->second;
}

void ResumeFile::append(const ItemResult& result) { write(nlohmann::json(result).dump()); }

void ResumeFile::write(const std::string& line) {
  stream_ << line << '\n' << std::flush;
  if (!stream_) detail::fail("the file ", path_.string(), " cannot be written");
}

}  // namespace lazyllm::llama
