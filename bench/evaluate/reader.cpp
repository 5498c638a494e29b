#include "bench/evaluate/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>

#include "bench/evaluate/metrics.hpp"
#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/files/input_file.hpp"
#include "examples/llama/program/fingerprint.hpp"
#include "examples/llama/program/input_files.hpp"

namespace llama {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// A configuration file of LongBench: a value for each data set. Throws unless all are of `type`.
json read_config(const fs::path& path, json::value_t type) {
  if (path.empty()) return json::object();
  const std::string text = read_input(path);
  json config = parse_json(std::as_bytes(std::span(text)), path.string());
  if (!config.is_object()) fail(path.string(), ": the file does not hold a JSON object");
  for (const auto& [dataset, value] : config.items()) {
    if (value.type() != type || (value.is_number() && !(value >= 1 && value <= max_answer_tokens))) {
      fail(path.string(), ": ", dataset, " is ", shown(value), ", not ",
           type == json::value_t::string ? "a text" : fmt::format("a whole number from 1 to {}", max_answer_tokens));
    }
  }
  return config;
}

const std::string& text_field(const json& line, const std::string& name) {
  const auto field = line.find(name);
  if (field == line.end()) fail("the field ", name, " is missing");
  if (!field->is_string()) fail(name, " is ", shown(*field), ", not a text");
  return field->get_ref<const std::string&>();
}

/// Puts fields of `line` in the places of `format` that name them, like Python's str.format.
std::string render(const std::string& format, const json& line) {
  std::string text;
  for (std::size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if (c != '{' && c != '}') {
      text += c;
    } else if (i + 1 < format.size() && format[i + 1] == c) {
      text += format[i++];
    } else {
      const std::size_t end = format.find('}', i);
      if (c == '}' || end == std::string::npos) fail("the prompt's format has a single '", c, "'");
      text += text_field(line, format.substr(i + 1, end - i - 1));
      i = end;
    }
  }
  return text;
}

/// The texts of an array; empty if it is something else.
std::optional<std::vector<std::string>> texts(const json& value) {
  if (!value.is_array() || !std::ranges::all_of(value, [](const json& entry) { return entry.is_string(); })) return {};
  return value.get<std::vector<std::string>>();
}

std::vector<std::string> read_answers(const json& line) {
  const auto field = line.find("answers");
  if (field == line.end()) fail("the field answers is missing");
  std::vector<std::string> answers;
  if (field->is_string()) {
    const auto& text = field->get_ref<const std::string&>();
    const json list = zero_byte_in(text).empty() ? json::parse(text, nullptr, false) : json();
    answers = texts(list).value_or(std::vector{text});
  } else if (const auto list = texts(*field)) {
    answers = *list;
  } else {
    fail("answers is ", shown(*field), ", not texts");
  }
  if (answers.empty()) fail("answers is empty");
  return answers;
}

std::vector<std::string> read_classes(const json& line) {
  const auto field = line.find("all_classes");
  if (field == line.end() || field->is_null()) return {};
  const auto classes = texts(*field);
  if (!classes) fail("all_classes is ", shown(*field), ", not null or texts");
  return *classes;
}

std::uint64_t fingerprint(const Item& item) {
  Fingerprint result;
  for (const std::string& text : {item.dataset, item.prompt, std::to_string(item.max_tokens)}) result.add(text);
  for (const auto* list : {&item.answers, &item.all_classes}) {
    result.add(std::to_string(list->size()));
    for (const std::string& text : *list) result.add(text);
  }
  return result.value();
}

class Reader {
 public:
  explicit Reader(const DataOptions& options)
      : options_(options),
        prompts_(read_config(options.prompts, json::value_t::string)),
        lengths_(read_config(options.lengths, json::value_t::number_unsigned)) {}

  void read(const fs::path& path) {
    for_each_line(path, [&](const std::string& text, Index line) {
      const std::string place = fmt::format("{}:{}", path.string(), line);
      try {
        add(read_line(text, path.stem().string(), place, line));
      } catch (const std::bad_alloc&) {
        throw;  // the line is not to blame
      } catch (const std::exception& error) {
        std::string_view reason = error.what();
        for (const std::string& prefix : {std::string("lazyllm: "), place + ": "}) {
          if (reason.starts_with(prefix)) reason.remove_prefix(prefix.size());
        }
        data_.bad_lines.push_back({place, std::string(reason)});
      }
    });
  }

  Data take() { return std::move(data_); }

 private:
  Item read_line(const std::string& text, const std::string& file_name, const std::string& place, Index number) const {
    const json line = parse_json(std::as_bytes(std::span(text)), place);
    if (!line.is_object()) fail("the line is not a JSON object");
    Item item;
    item.place = place;
    item.dataset = line.contains("dataset") ? text_field(line, "dataset") : file_name;
    item.id = item.dataset + "/" + read_id(line, fmt::format("{}:{}", file_name, number));
    item.prompt = read_prompt(line, item.dataset);
    item.answers = read_answers(line);
    item.all_classes = read_classes(line);
    item.max_tokens = std::min(read_length(line, item.dataset), options_.longest_answer.value_or(max_answer_tokens));
    score(item.dataset, "", item.answers, item.all_classes);  // throws now if it will not be able to
    item.fingerprint = fingerprint(item);
    return item;
  }

  static std::string read_id(const json& line, const std::string& absent) {
    const auto field = line.find("_id");
    if (field == line.end()) return absent;
    if (field->is_number_integer()) return field->dump();
    return text_field(line, "_id");
  }

  std::string read_prompt(const json& line, const std::string& dataset) const {
    std::string prompt;
    if (line.contains("prompt")) {
      prompt = text_field(line, "prompt");
    } else if (const auto format = prompts_.find(dataset); format != prompts_.end()) {
      prompt = render(format->get_ref<const std::string&>(), line);
    } else {
      fail("there is no field prompt",
           options_.prompts.empty() ? ": --prompts is needed for LongBench's lines"
                                    : " and no prompt format for the data set ",
           options_.prompts.empty() ? "" : dataset);
    }
    if (prompt.empty()) fail("the prompt is empty");
    return prompt;
  }

  Index read_length(const json& line, const std::string& dataset) const {
    if (const auto field = line.find("max_tokens"); field != line.end()) {
      const bool good = field->is_number_integer() && *field >= 1 && *field <= max_answer_tokens;
      if (!good) {
        fail("max_tokens is ", shown(*field), ", not a whole number from 1 to ", max_answer_tokens);
      }
      return field->get<Index>();
    }
    if (const auto length = lengths_.find(dataset); length != lengths_.end()) return length->get<Index>();
    if (!options_.max_tokens) {
      fail("no length of the answer: the line has no max_tokens, ",
           options_.lengths.empty() ? "and neither --lengths nor --max-tokens is given"
                                    : "--lengths does not name the data set and --max-tokens is not given");
    }
    return *options_.max_tokens;
  }

  void add(Item item) {
    if (!ids_.insert(item.id).second) fail("an earlier line has the same _id, ", item.id);
    if (options_.limit && ++counts_[item.dataset] > *options_.limit) return;
    data_.items.push_back(std::move(item));
  }

  const DataOptions& options_;
  json prompts_;
  json lengths_;
  std::set<std::string> ids_;
  std::map<std::string, Index> counts_;
  Data data_;
};

}  // namespace

Data read_data(const DataOptions& options) {
  Reader reader(options);
  for (const fs::path& file : files_at(options.data, {".jsonl"})) reader.read(file);
  return reader.take();
}

}  // namespace llama
