#include "examples/llama/tokenizer/chat_template.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <regex>
#include <utility>

#include "examples/llama/files/input_file.hpp"
#include "examples/llama/tokenizer/json.hpp"
#include "examples/llama/tokenizer/text.hpp"

namespace llama {
namespace {

using nlohmann::json;

bool has(std::string_view source, std::string_view part) { return source.find(part) != std::string_view::npos; }

/// The template with "\n" in its string literals read as newlines.
std::string with_newlines(const std::string& source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool newline = source.compare(i, 2, "\\n") == 0;
    text += newline ? '\n' : source[i];
    i += newline;
  }
  return text;
}

/// The string literal of `source` that is `mark` with nothing but spaces around it; empty if there is none.
std::string_view literal_with(std::string_view source, std::string_view mark) {
  for (std::size_t at = source.find(mark); at != std::string_view::npos; at = source.find(mark, at + 1)) {
    const std::size_t before = source.find_last_not_of(' ', at - 1),
                      after = source.find_first_not_of(' ', at + mark.size());
    if (at == 0 || before == std::string_view::npos || after == std::string_view::npos) continue;
    const bool quoted = source[before] == source[after] && (source[before] == '\'' || source[before] == '"');
    if (quoted) return source.substr(before + 1, after - before - 1);
  }
  return {};
}

Index count(const std::string& source, const std::string& pattern) {
  const std::regex regex(pattern);
  return std::distance(std::sregex_iterator(source.begin(), source.end(), regex), std::sregex_iterator());
}

/// Whether a ChatML template takes white space off the contents of all messages. Where it does so with some, or in
/// another way, it is not known what becomes of a prompt.
bool trims_contents(const std::string& source) {
  const std::string content = R"re(\bmessage(\.content|\['content'\]|\["content"\]))re";
  const Index trimmed = count(source, content + R"re((\s*\|\s*trim\b|\.strip\(\)))re");
  if (count(source, R"re(\btrim\b|strip\()re") != trimmed || (trimmed != 0 && count(source, content) != trimmed))
    throw tokenizer_error(
        "the chat_template trims texts in a way that is not known; known is message['content'] | trim");
  return trimmed != 0;
}

/// Whether a template with [INST] takes white space off the user's messages, wherever it writes one.
bool trims_instructions(std::string_view source) {
  static const std::regex trims(R"re(\btrim\b|strip\()re"),
      earlier(R"re(\bset\s+(?!sys)\w+\s*=[^%]*(\btrim\b|strip\())re");
  Index written = 0, trimmed = 0;
  for (std::size_t at = source.find("[INST]"); at != std::string_view::npos; at = source.find("[INST]", at + 1)) {
    const std::string_view turn = source.substr(at, source.find("[/INST]", at) - at);
    ++written;
    trimmed += std::regex_search(turn.begin(), turn.end(), trims);
  }
  if (trimmed == 0 ? std::regex_search(source.begin(), source.end(), earlier) : trimmed != written)
    throw tokenizer_error("the chat_template trims texts in a way that is not known; known is in each [INST]");
  return trimmed != 0;
}

/// Whether the template writes white space that lies between two tags. transformers takes off the newline after a block
/// and the indentation before one, not those of an output.
bool writes_gaps(const std::string& source) {
  static const std::regex gap_between(R"re(([%#}])\}(\s+)\{([%#{])(-?))re");
  for (std::sregex_iterator found(source.begin(), source.end(), gap_between), end; found != end; ++found) {
    std::string gap = found->str(2);
    if (found->str(1) != "}" && gap.starts_with('\n')) gap.erase(0, 1);
    if (found->str(3) != "{" && gap.find_first_not_of(' ', gap.rfind('\n') + 1) == std::string::npos)
      gap.erase(gap.rfind('\n') + 1);
    const bool taken_off = found->position() > 0 && source[static_cast<std::size_t>(found->position()) - 1] == '-';
    if (!gap.empty() && !taken_off && found->str(4).empty()) return true;
  }
  return false;
}

/// Whether the first text of the template's own, but for BOS, is `mark`.
bool begins_with(const std::string& source, std::string_view mark) {
  static const std::regex first_text(R"re(^\s*(?![\s{])|\{\{-?\s*['"])re");
  std::smatch match;
  return std::regex_search(source, match, first_text) &&
         source.compare(static_cast<std::size_t>(match.position() + match.length()), mark.size(), mark) == 0;
}

/// Whether what the template writes where `add_generation_prompt` is set is `header` and nothing else. A block for
/// `enable_thinking`, which nobody sets, writes nothing.
bool answers_begin_with(std::string_view source, std::string_view header) {
  static const std::regex opening(R"re(^[ \n]*(?:\{\{-?[ \n]*(['"]))?)re");
  // A "-" after a header that is no literal would take its newline off.
  static const std::regex closing(
      R"re(^(?:(['"])[ -]*\}\}[ \n]*\{%-?|\{%)[ \n]*(?:endif|el|if enable_thinking is defined))re");
  const std::size_t condition = source.rfind("add_generation_prompt"), block = source.find("%}", condition);
  if (condition == std::string_view::npos || block == std::string_view::npos) return false;
  std::string_view rest = source.substr(block + 2);
  std::match_results<std::string_view::const_iterator> match;
  std::regex_search(rest.begin(), rest.end(), match, opening);
  const std::string quote = match.str(1);
  rest.remove_prefix(static_cast<std::size_t>(match.length()));
  if (!rest.starts_with(header)) return false;
  rest.remove_prefix(header.size());
  return std::regex_search(rest.begin(), rest.end(), match, closing) && match.str(1) == quote;
}

/// The conditions of the blocks that are open at `at`, the outermost first; "else" for the other branch of one.
std::vector<std::string> conditions_at(const std::string& source, std::size_t at) {
  static const std::regex statement(R"re(\{%-?\s*(if|elif|else|endif)\b([^%]*)%\})re");
  std::vector<std::string> open;
  for (std::sregex_iterator found(source.begin(), source.end(), statement), end; found != end; ++found) {
    if (static_cast<std::size_t>(found->position()) >= at) break;
    const std::string word = found->str(1);
    if (word == "if") {
      open.push_back(found->str(2));
    } else if (!open.empty()) {
      if (word == "endif")
        open.pop_back();
      else
        open.back() = word == "else" ? "else" : found->str(2);
    }
  }
  return open;
}

/// Whether what stands at `at` is written in a conversation that a user begins, without tools: by the conditions around
/// it.
bool written_for_user(const std::string& source, std::size_t at) {
  static const std::regex other(R"re(==\s*['"]system['"]|^\s*\(?\s*tools\b|^\s*system\w*\s*(-|$))re");
  return std::ranges::none_of(conditions_at(source, at),
                              [](const std::string& condition) { return std::regex_search(condition, other); });
}

/// Whether `part` stands anywhere in the template where it is written for a user.
bool has_for_user(const std::string& source, std::string_view part) {
  for (std::size_t at = source.find(part); at != std::string::npos; at = source.find(part, at + 1)) {
    if (written_for_user(source, at)) return true;
  }
  return false;
}

/// Whether each `mark` of the template is followed by `text`, in the same literal or in one that is added to it.
bool always_followed(std::string_view source, std::string_view mark, std::string_view text) {
  static const std::regex joint(R"re(^(['"])\s*[+~]\s*(['"]))re");
  for (std::size_t at = source.find(mark); at != std::string_view::npos; at = source.find(mark, at + 1)) {
    std::string_view rest = source.substr(at + mark.size());
    std::match_results<std::string_view::const_iterator> match;
    if (std::regex_search(rest.begin(), rest.end(), match, joint))
      rest.remove_prefix(static_cast<std::size_t>(match.length()));
    if (!rest.starts_with(text)) return false;
  }
  return true;
}

[[noreturn]] void refuse(std::string_view what) {
  throw tokenizer_error(fmt::format("the chat_template {}, which is not known", what));
}

/// Refuses a template that begins a conversation with another text than `start`, or an answer with another than
/// `header`, or writes anything between.
void check_texts(const std::string& source, std::string_view start, std::string_view header) {
  if (!begins_with(source, start)) refuse("begins with a text of its own");
  if (!answers_begin_with(source, header)) refuse("begins an answer in its own way");
  if (writes_gaps(source)) refuse("writes white space between its tags");
}

/// The variable that a template puts after a string literal which ended with `quote`, as `quote + variable` or in an
/// output of its own; empty if something else comes.
std::string variable_after(std::string_view rest) {
  static const std::regex next(R"re(^.\s*(?:[+~]|-?\}\}\s*\{\{-?)\s*([A-Za-z_]\w*))re");
  std::match_results<std::string_view::const_iterator> match;
  return std::regex_search(rest.begin(), rest.end(), match, next) ? match.str(1) : std::string();
}

/// The system message that a template without one in the conversation takes from `variable`: the one text that it sets
/// it to.
std::string default_of(const std::string& source, const std::string& variable) {
  const std::regex assignment("\\bset\\s+" + variable + "\\s*=\\s*(['\"])");
  const std::string whole = "['\"]\\s*\\+\\s*" + variable + "\\s*\\+\\s*['\"]<\\|im_end\\|>\n";
  std::string text;
  std::smatch match;
  if (count(source, "\\bset\\s+" + variable + "\\s*=\\s*['\"]") == 1 && count(source, whole) == 1 &&
      std::regex_search(source, match, assignment)) {
    const auto start = static_cast<std::size_t>(match.position() + match.length());
    text = source.substr(start, source.find(match.str(1), start) - start);
  }
  if (text.empty())
    throw tokenizer_error(
        fmt::format("the chat_template has its system message from \"{}\", whose text is not known", variable));
  return text;
}

/// Throws for a template, not of ChatML, with a system message of its own: a text that it sets a variable to, or
/// writes.
void refuse_system_message(const std::string& source) {
  static const std::regex of_variable(R"re(sys\w*\s*(=|=[^%}]*\belse|\|\s*default\()\s*(['"])(?!\2))re"),
      written(R"re((<<SYS>>|<\|system\|>|system<\|end_header_id\|>)\n+[^\n'"{])re");
  if (std::regex_search(source, of_variable) || std::regex_search(source, written))
    throw tokenizer_error("the chat_template has a system message of its own, which is read with ChatML only");
}

/// What a template of Llama 3.1 and later says of dates, as transformers renders it.
std::string dates(const std::string& source, const std::tm& now) {
  static const std::regex cutoff("Cutting Knowledge Date: ([^'\"]+)\n"),
      today(R"re(Today Date: (['"])\s*\+\s*date_string\s*\+\s*\1)re"),
      of_clock(R"re(\bset\s+date_string\s*=\s*strftime_now\((['"])%d %b %Y\1\))re"),
      fixed(R"re(\bset\s+date_string\s*=\s*(['"])([^'"]+)\1)re");
  std::smatch knowledge, date;
  const bool has_clock = std::regex_search(source, of_clock);
  const bool known = std::regex_search(source, knowledge, cutoff) && std::regex_search(source, today) &&
                     (has_clock || (!has(source, "strftime_now") && std::regex_search(source, date, fixed)));
  if (!known) throw tokenizer_error("the chat_template has its dates in a way that is not known");
  return fmt::format("Cutting Knowledge Date: {}\nToday Date: {}\n\n", knowledge.str(1),
                     has_clock ? fmt::format("{:%d %b %Y}", now) : date.str(2));
}

/// A text of tokenizer_config.json, given as it is or as an object with "content".
std::string token_text(const json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end() || found->is_null()) return {};
  return found->is_string() ? found->get<std::string>() : string_member(*found, "content");
}

/// The member "chat_template": a text, or an array of named ones, of which "default" counts.
std::string template_in(const json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return {};
  if (found->is_string()) return found->get<std::string>();
  for (const json& each : *found) {
    if (string_member(each, "name") == "default") return string_member(each, "template");
  }
  return {};
}

}  // namespace

std::tm local_time() { return fmt::localtime(std::time(nullptr)); }

ChatTemplate::ChatTemplate(const std::string& source, std::string bos, const std::string& eos, const std::tm& now)
    : bos_(std::move(bos)) {
  const std::string text = with_newlines(source);
  starts_with_bos_ = has_for_user(text, "bos_token");
  if (!bos_.empty() && bos_ != "<|im_start|>" && has(text, bos_)) refuse("has the text of BOS in place of bos_token");
  if (has(text, "<|im_start|>")) {
    read_chatml(text);
  } else if (has(text, "<|start_header_id|>")) {
    read_llama3(text, now);
  } else if (has(text, "[INST]") && !has(text, "[SYSTEM_PROMPT]")) {
    read_instructions(text);
  } else if (has(text, "<|user|>")) {
    read_zephyr(text, eos);
  }
  if (after_.empty()) {
    throw tokenizer_error(
        "the chat_template is of a kind that is not known; ChatML, Llama 2, Llama 3, Mistral and Zephyr are");
  }
}

void ChatTemplate::read_chatml(const std::string& source) {
  constexpr std::string_view start = "<|im_start|>system\n", end = "<|im_end|>";
  for (std::string_view rest = source; has(rest, start);) {
    const std::size_t found = rest.find(start);
    const char opening = found == 0 ? ' ' : rest[found - 1];
    rest.remove_prefix(found + start.size());
    if (!written_for_user(source, source.size() - rest.size())) continue;
    std::string text;
    if (rest.starts_with('\'') || rest.starts_with('"')) {
      const std::string variable = variable_after(rest);
      if (variable.empty() || variable.starts_with("message")) continue;  // put together from a message or tools
      text = default_of(source, variable);
    } else {
      text = rest.substr(0, rest.find(end));
      const bool quoted = opening == '\'' || opening == '"';
      if (has(text, quoted ? std::string_view(&opening, 1) : "{{"))
        throw tokenizer_error("the chat_template puts its system message together in a way that is not known");
    }
    before_ = fmt::format("{}{}{}\n", start, text, end);
    break;
  }
  strips_ = trims_contents(source);
  static const std::regex user_turn(
      R"re(<\|im_start\|>(user\n|['"]?\s*([+~]|-?\}\}\s*\{\{-?|\{\{-?)\s*message(\.role|\['role'\]|\["role"\])))re");
  if (!std::regex_search(source, user_turn)) refuse("has other roles than user and assistant");
  if (!always_followed(source, end, "\n")) refuse("ends a turn without a newline");
  check_texts(source, "<|im_start|>", "<|im_start|>assistant\n");
  before_ += "<|im_start|>user\n";
  after_ = "<|im_end|>\n<|im_start|>assistant\n";
}

void ChatTemplate::read_llama3(const std::string& source, const std::tm& now) {
  refuse_system_message(source);
  constexpr std::string_view end = "<|eot_id|>";
  const auto header = [](std::string_view role) {
    return fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role);
  };
  if (has(source, "Cutting Knowledge Date")) {
    before_ = fmt::format("{}{}{}", header("system"), dates(source, now), end);
  } else if (has_for_user(source, "system<|end_header_id|>")) {
    refuse("always has a system message");
  }
  if (!always_followed(source, "<|end_header_id|>", "\n\n")) refuse("has other headers than Llama 3");
  check_texts(source, "<|start_header_id|>", header("assistant"));
  before_ += header("user");
  after_ = std::string(end) + header("assistant");
  strips_ = has(source, "trim") || has(source, "strip()");
}

/// Llama 2 and Mistral, which differ in spaces.
void ChatTemplate::read_instructions(const std::string& source) {
  refuse_system_message(source);
  before_ = literal_with(source, "[INST]");
  after_ = literal_with(source, "[/INST]");
  if (before_.empty()) after_.clear();
  if (writes_gaps(source)) refuse("writes white space between its tags");
  strips_ = trims_instructions(source);
}

void ChatTemplate::read_zephyr(const std::string& source, const std::string& eos) {
  refuse_system_message(source);
  // Each output has a line of its own, whose end stays; without "-", which would take it off.
  const bool known = has(source, "%}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n{% ") &&
                     has(source, "%}\n{{ '<|assistant|>' }}\n{% ");
  if (!known) return;
  if (eos.empty()) throw tokenizer_error("the chat_template has eos_token, which tokenizer_config.json does not name");
  before_ = "<|user|>\n";
  after_ = eos + "\n<|assistant|>\n";
}

std::string ChatTemplate::text(std::string_view prompt) const {
  if (strips_) {
    prompt.remove_prefix(leading_space(prompt));
    prompt.remove_suffix(trailing_space(prompt));
  }
  return fmt::format("{}{}{}", before_, prompt, after_);
}

std::vector<TokenId> ChatTemplate::encode(const Tokenizer& tokenizer, std::string_view prompt) const {
  for (const std::string& token : tokenizer.unread_tokens()) {
    if (has(before_, token) || has(after_, token)) {
      throw tokenizer_error(
          fmt::format("the chat_template has the token {}, which this kind of tokenizer does not read in a text; "
                      "tokenizer.json does",
                      token));
    }
  }
  // As text BOS is found like any added token. SentencePiece reads no special tokens in a text: there it goes before
  // it.
  const auto bos = starts_with_bos_ ? tokenizer.encode(bos_, false) : std::vector<TokenId>();
  const bool found = bos.size() == 1 && bos.front() == tokenizer.bos();
  if (starts_with_bos_ && !found && !tokenizer.bos() && !bos_.empty()) {
    throw tokenizer_error(fmt::format("the chat_template begins with bos_token {}, which is no token", bos_));
  }
  const std::string start = found ? bos_ : std::string();
  try {
    return tokenizer.encode(start + text(prompt), starts_with_bos_ && !found);
  } catch (const tokenizer_error& error) {
    throw tokenizer_error(fmt::format("{}; in that text, made by the chat template, the prompt begins at offset {}",
                                      error.what(), start.size() + before_.size()));
  }
}

ChatTemplate open_chat_template(const std::filesystem::path& path, const std::tm& now) {
  const std::filesystem::path folder = std::filesystem::is_directory(path) ? path : path.parent_path();
  const std::filesystem::path config_file = folder / "tokenizer_config.json",
                              jinja_file = folder / "chat_template.jinja";
  const bool has_config = std::filesystem::exists(config_file), has_jinja = std::filesystem::exists(jinja_file);
  const json config = has_config ? parse_tokenizer_json(read_input(config_file), config_file.string()) : json();
  const std::string jinja = has_jinja ? read_input(jinja_file) : std::string();
  try {
    const std::string source = has_jinja ? jinja : template_in(config);
    if (source.empty()) throw tokenizer_error("there is no chat_template, so this is no chat model");
    return {source, token_text(config, "bos_token"), token_text(config, "eos_token"), now};
  } catch (const std::exception& error) {
    throw tokenizer_error(fmt::format("{}: {}", (has_jinja ? jinja_file : config_file).string(), error.what()));
  }
}

}  // namespace llama
