#pragma once

#include <ctime>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "examples/llama/tokenizer/jinja.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {

/// Now.
std::tm local_time();

/// How a prompt is put to a chat model: in the text that it was trained with.
class ChatTemplate {
 public:
  /// The Jinja text `source` of a `chat_template`. `special_tokens` are the texts of the model's special tokens by
  /// their names in a template, such as `bos_token`. A template that calls `strftime_now` gets the date of `now`.
  /// Throws `tokenizer_error` for a template that is not known, see `JinjaTemplate`, and for one that does not write
  /// what a user says.
  ChatTemplate(std::string_view source, std::map<std::string, std::string> special_tokens,
               const std::tm& now = local_time());

  /// Text of a conversation in which the user says `prompt`, up to where the answer begins: that of transformers'
  /// `apply_chat_template`. Throws `tokenizer_error` where the template refuses it.
  std::string text(std::string_view prompt) const;

  /// The tokens of that text, those of transformers' `apply_chat_template`. Throws `tokenizer_error`, also where the
  /// template has a token that `tokenizer` does not read in a text.
  std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view prompt) const;

 private:
  JinjaTemplate template_;
  std::map<std::string, std::string> special_tokens_;
  std::tm now_;
  std::string before_, after_;  // what the template writes around a prompt
};

/// The template of the model whose tokenizer is at `path`, as `open_tokenizer` takes it: `chat_template.jinja` beside
/// it, else the `chat_template` of `tokenizer_config.json`. Special tokens are those of `tokenizer_config.json` and, as
/// in transformers, of `special_tokens_map.json`. Throws `tokenizer_error` naming the file where there is none.
ChatTemplate open_chat_template(const std::filesystem::path& path, const std::tm& now = local_time());

}  // namespace llama
