#include "examples/llama/tokenizer/chat_template.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "examples/llama/files/input_file.hpp"
#include "examples/llama/tokenizer/json.hpp"

namespace llama {
namespace {

using nlohmann::json;

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// The JSON of a file beside the tokenizer; null where there is none.
json json_beside(const std::filesystem::path& file) {
  return may_be_there(file) ? parse_tokenizer_json(read_input(file), file.string()) : json();
}

/// Texts of the special tokens: each is given as it is or as an object with "content".
std::map<std::string, std::string> special_tokens(const json& config, const json& map) {
  std::map<std::string, std::string> texts;
  // transformers reads special_tokens_map.json, the older file, only where tokenizer_config.json does not list the
  // added tokens, and then the older one counts.
  std::vector<const json*> files{&config};
  if (!config.contains("added_tokens_decoder")) files.push_back(&map);
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    for (const json* file : files) {
      const auto found = file->find(name);
      if (found == file->end() || found->is_null()) continue;
      texts[name] = found->is_string() ? found->get<std::string>() : string_member(*found, "content");
    }
  }
  return texts;
}

/// The member "chat_template": a text, or an array of named ones, of which "default" counts.
std::string template_in(const json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null() || found->empty()) return {};
  if (!found->is_array()) return string_member(config, "chat_template");
  std::vector<std::string> names;
  for (const json& each : *found) {
    names.push_back(string_member(each, "name"));
    if (names.back() == "default") return string_member(each, "template");
  }
  throw tokenizer_error(
      fmt::format("the chat_template has the names {}, expected \"default\" among them", fmt::join(names, ", ")));
}

}  // namespace

std::tm local_time() { return fmt::localtime(std::time(nullptr)); }

ChatTemplate::ChatTemplate(std::string_view source, std::map<std::string, std::string> special_tokens,
                           const std::tm& now)
    : template_(source), special_tokens_(std::move(special_tokens)), now_(now) {
  constexpr std::string_view prompt = "\x01";  // no template writes it, and none takes it off
  const std::string whole = text(prompt);
  const std::size_t at = whole.find(prompt);
  if (at == std::string::npos) throw tokenizer_error("the chat_template does not write what a user says");
  before_ = whole.substr(0, at);
  after_ = whole.substr(at + prompt.size());
}

std::string ChatTemplate::text(std::string_view prompt) const {
  nlohmann::ordered_json variables{{"messages", {{{"role", "user"}, {"content", prompt}}}},
                                   {"tools", nullptr},
                                   {"documents", nullptr},
                                   {"add_generation_prompt", true}};
  for (const auto& [name, token] : special_tokens_) variables[name] = token;
  return template_.render(variables, now_);
}

std::vector<TokenId> ChatTemplate::encode(const Tokenizer& tokenizer, std::string_view prompt) const {
  const auto found = special_tokens_.find("bos_token");
  const std::string bos = found == special_tokens_.end() ? std::string() : found->second;
  const bool has_bos = !bos.empty() && before_.starts_with(bos);
  // As text BOS is found like any added token. SentencePiece reads no special tokens in a text: there it goes before
  // it.
  const bool is_read = has_bos && tokenizer.encode(bos, false).size() == 1;
  if (has_bos && !is_read && !tokenizer.bos())
    throw tokenizer_error(fmt::format("the chat_template begins with bos_token {}, which is no token", bos));
  const std::size_t skipped = has_bos && !is_read ? bos.size() : 0;
  for (const std::string& token : tokenizer.unread_tokens()) {
    if (has(before_.substr(skipped), token) || has(after_, token)) {
      throw tokenizer_error(
          fmt::format("the chat_template has the token {}, which this kind of tokenizer does not read in a text; "
                      "tokenizer.json does",
                      token));
    }
  }
  const std::string whole = text(prompt);
  if (skipped > 0 && !whole.starts_with(bos))
    throw tokenizer_error(fmt::format("the chat_template begins with bos_token {} for some prompts alone", bos));
  try {
    return tokenizer.encode(std::string_view(whole).substr(skipped), skipped > 0);
  } catch (const tokenizer_error& error) {
    throw tokenizer_error(fmt::format("{}; in that text, made by the chat template, the prompt begins at offset {}",
                                      error.what(), before_.size() - skipped));
  }
}

ChatTemplate open_chat_template(const std::filesystem::path& path, const std::tm& now) {
  std::error_code none;
  const std::filesystem::path folder = std::filesystem::is_directory(path, none) ? path : path.parent_path();
  const std::filesystem::path config_file = folder / "tokenizer_config.json",
                              jinja_file = folder / "chat_template.jinja";
  const bool has_jinja = may_be_there(jinja_file);
  const json config = json_beside(config_file), map = json_beside(folder / "special_tokens_map.json");
  const std::string jinja = has_jinja ? read_input(jinja_file) : std::string();
  try {
    const std::string source = has_jinja ? jinja : template_in(config);
    if (source.empty()) throw tokenizer_error("there is no chat_template, so this is no chat model");
    return {source, special_tokens(config, map), now};
  } catch (const std::exception& error) {
    throw tokenizer_error(fmt::format("{}: {}", (has_jinja ? jinja_file : config_file).string(), error.what()));
  }
}

}  // namespace llama
