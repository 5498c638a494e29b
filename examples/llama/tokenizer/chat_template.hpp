#pragma once

#include <ctime>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {

/// Now.
std::tm local_time();

/// How a prompt is put to a chat model: between the marks that it was trained with.
class ChatTemplate {
 public:
  /// Recognises the Jinja text `source` of a `chat_template`: ChatML (with the system message that it puts before a
  /// conversation without one), Llama 2, Llama 3 (with its dates), Mistral or Zephyr. It is not evaluated. `bos` and
  /// `eos` are the texts of BOS and EOS, empty where there is none. A template that calls `strftime_now` gets the date
  /// of `now`. Throws `tokenizer_error` for a template of another kind.
  ChatTemplate(const std::string& source, std::string bos, const std::string& eos = {},
               const std::tm& now = local_time());

  /// Text of a conversation in which the user says `prompt`, up to where the answer begins; BOS is not in it.
  std::string text(std::string_view prompt) const;

  /// The tokens of that conversation, BOS among them where the template has it: those of transformers'
  /// `apply_chat_template`. Throws `tokenizer_error` where the template has a token that `tokenizer` does not read in a
  /// text.
  std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view prompt) const;

 private:
  void read_chatml(const std::string& source);
  void read_llama3(const std::string& source, const std::tm& now);
  void read_instructions(const std::string& source);
  void read_zephyr(const std::string& source, const std::string& eos);

  std::string before_, after_;  // the prompt
  bool strips_ = false;         // white space around the prompt goes
  bool starts_with_bos_ = false;
  std::string bos_;
};

/// The template of the model whose tokenizer is at `path`, as `open_tokenizer` takes it: `chat_template.jinja` beside
/// it, else the `chat_template` of `tokenizer_config.json`. Throws `tokenizer_error` naming the file where there is
/// none.
ChatTemplate open_chat_template(const std::filesystem::path& path, const std::tm& now = local_time());

}  // namespace llama
