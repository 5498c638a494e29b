#pragma once

#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace llama {

/// A template of the language Jinja, as chat templates use it: rendered as Jinja renders it in transformers
/// (`trim_blocks`, `lstrip_blocks`, `loopcontrols`), or refused. Immutable, so threads may share one.
///
/// Known are `if`, `for` (with `if` and `else`), `set`, `macro`, `break`, `continue` and `generation`; all operators
/// but `/` and `**`; the filters, tests, functions and methods that the tables in jinja.cpp list. What is not known is
/// refused where it is reached, so that a branch for tools may have it; a statement, or syntax, is refused anywhere.
class JinjaTemplate {
 public:
  /// State of a rendering, of jinja.cpp.
  struct Rendering;
  using Statement = std::function<void(Rendering&)>;

  /// Throws `tokenizer_error` that names the line for what is no template, or nests too deeply.
  explicit JinjaTemplate(std::string_view source);

  /// The text with the members of the object `variables`. `now` is what `strftime_now` gives. Throws `tokenizer_error`
  /// that names the line: for what is not known, for what Jinja throws at, for what the template raises itself, and
  /// where it takes more than a million steps or a text of more than 256 MiB.
  std::string render(const nlohmann::ordered_json& variables, const std::tm& now) const;

 private:
  std::vector<Statement> statements_;
};

}  // namespace llama
