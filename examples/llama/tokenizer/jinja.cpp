#include "examples/llama/tokenizer/jinja.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <utility>

#include "examples/llama/tokenizer/text.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

// The parser makes a function of each expression and each statement; rendering calls them. The grammar is that of
// Jinja's own parser.

namespace llama {
namespace {

using Value = nlohmann::ordered_json;  // a mapping of Python keeps the order of its members

constexpr std::size_t most_bytes = std::size_t{256} << 20;
constexpr std::int64_t most_steps = 1000000;
constexpr int deepest = 100, deepest_macro = 20;

[[noreturn]] void fail(Index line, const std::string& what) {
  throw tokenizer_error(fmt::format("the chat_template, line {}: {}", line, what));
}

// Values. Jinja's undefined value is one that nlohmann::json calls discarded.

Value undefined() { return Value(Value::value_t::discarded); }

std::string_view kind_of(const Value& value) {
  return value.is_discarded() ? "an undefined value"
         : value.is_null()    ? "none"
         : value.is_string()  ? "a text"
         : value.is_boolean() ? "a truth value"
         : value.is_number()  ? "a number"
         : value.is_array()   ? "a list"
                              : "a mapping";
}

bool is_true(const Value& value) {
  if (value.is_discarded() || value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return value.is_number() ? value != 0 : !value.empty();
}

/// As in Python, where True is 1, and the order of a mapping's members does not count.
bool equal(const Value& a, const Value& b) {
  if (a.is_discarded() || b.is_discarded()) return a.is_discarded() && b.is_discarded();
  if (a.is_boolean() && b.is_number()) return b == static_cast<int>(a.get<bool>());
  if (b.is_boolean() && a.is_number()) return a == static_cast<int>(b.get<bool>());
  if (a.is_array() && b.is_array()) return std::equal(a.begin(), a.end(), b.begin(), b.end(), equal);
  if (!a.is_object() || !b.is_object()) return a == b;
  for (const auto& [key, value] : a.items()) {
    const auto found = b.find(key);
    if (found == b.end() || !equal(value, *found)) return false;
  }
  return a.size() == b.size();
}

const std::string& string_of(const Value& value, Index line, std::string_view what) {
  if (!value.is_string()) fail(line, fmt::format("{} is {}, expected a text", what, kind_of(value)));
  return value.get_ref<const std::string&>();
}

std::int64_t integer_of(const Value& value, Index line, std::string_view what) {
  if (!value.is_number_integer()) fail(line, fmt::format("{} is {}, expected a whole number", what, kind_of(value)));
  return value.get<std::int64_t>();
}

/// What an output or `~` writes of a value.
std::string text_of(const Value& value, Index line) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_discarded()) return {};
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_number_integer()) return std::to_string(value.get<std::int64_t>());
  fail(line, fmt::format("{} is written out, which is not known", kind_of(value)));
}

std::string added(std::string text, std::string_view more, Index line) {
  if (text.size() + more.size() > most_bytes) fail(line, "a text has more than 256 MiB");
  text += more;
  return text;
}

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

/// The characters of UTF-8 `text`, which Python counts.
Value characters(std::string_view text) {
  Value all = Value::array();
  for (std::size_t at = 0, next; at < text.size(); at = next) {
    for (next = at + 1; next < text.size() && !begins_character(text[next]);) ++next;
    all.push_back(std::string(text.substr(at, next - at)));
  }
  return all;
}

/// Throws for a value that nests too deeply: copying it would take of the stack.
void check_depth(const Value& value, Index line, int levels = deepest) {
  if (levels == 0) fail(line, fmt::format("a value nests more than {} levels", deepest));
  if (!value.is_structured()) return;
  for (const Value& each : value) check_depth(each, line, levels - 1);
}

/// What a loop runs through: an array.
Value items_of(const Value& value, Index line) {
  if (value.is_array()) return value;
  if (value.is_string()) return characters(value.get_ref<const std::string&>());
  Value keys = Value::array();
  if (value.is_object()) {
    for (const auto& [key, of_key] : value.items()) keys.push_back(key);
  } else if (!value.is_discarded()) {
    fail(line, fmt::format("a loop runs through {}", kind_of(value)));
  }
  return keys;
}

bool contains(const Value& whole, const Value& part, Index line) {
  if (whole.is_string())
    return whole.get_ref<const std::string&>().find(string_of(part, line, "\"in\"")) != std::string::npos;
  const Value items = items_of(whole, line);
  return std::ranges::any_of(items, [&](const Value& item) { return equal(item, part); });
}

// Filters, tests, functions and methods, by their names.

struct Call {
  Call(std::string name_, Index line_, const std::tm* now_) : name(std::move(name_)), line(line_), now(now_) {}

  std::string name;  ///< with its kind, as messages have it
  Index line;
  const std::tm* now;
  Value subject;                  ///< what a filter, test or method is applied to
  std::vector<Value> positional;  ///< arguments
  std::map<std::string, Value> named;

  [[noreturn]] void refuse(std::string_view why) const { fail(line, fmt::format("{} {}", name, why)); }
  void takes(std::size_t least, std::size_t most) const {
    if (positional.size() < least || positional.size() > most || !named.empty())
      refuse("has arguments that are not known");
  }
  const std::string& text() const { return string_of(subject, line, name); }
  const std::string& text(std::size_t argument) const { return string_of(positional[argument], line, name); }
};

using Function = std::function<Value(const Call&)>;
using Functions = std::map<std::string, Function, std::less<>>;

const Function& function_of(const Functions& functions, std::string_view name, std::string_view kind, Index line) {
  const auto found = functions.find(name);
  if (found != functions.end()) return found->second;
  std::vector<std::string_view> known;
  for (const auto& [each, function] : functions) known.push_back(each);
  fail(line, fmt::format("{} \"{}\" is not known; known are {}", kind, name, fmt::join(known, ", ")));
}

/// Unicode's white space, and four control characters.
bool is_space_in_python(UChar32 c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); }
std::size_t leading_space(std::string_view text) { return llama::leading_space(text, is_space_in_python); }
std::size_t trailing_space(std::string_view text) { return llama::trailing_space(text, is_space_in_python); }

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// Of ASCII alone: what Python makes of other letters is not known.
template <int (*change)(int)>
Value changed_case(const Call& call) {
  call.takes(0, 0);
  std::string text = call.text();
  if (!is_ascii(text)) call.refuse("of letters other than ASCII is not known");
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(change(c)); });
  return text;
}

Value capitalized(const Call& call) {
  auto text = changed_case<std::tolower>(call).get<std::string>();
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(text[0]));
  return text;
}

template <bool begin, bool end>
Value stripped(const Call& call) {
  call.takes(0, 1);
  std::string_view text = call.text();
  if (call.positional.empty()) {
    if (begin) text.remove_prefix(leading_space(text));
    if (end) text.remove_suffix(trailing_space(text));
    return std::string(text);
  }
  const std::string& which = call.text(0);
  if (!is_ascii(which)) call.refuse("of characters other than ASCII is not known");
  if (begin) text.remove_prefix(std::min(text.find_first_not_of(which), text.size()));
  return std::string(end ? text.substr(0, text.find_last_not_of(which) + 1) : text);
}

/// The parts of `text` between the first `most` of its `separator`s.
Value parts_of(std::string_view text, std::string_view separator, std::int64_t most) {
  Value parts = Value::array();
  std::size_t from = 0;
  for (std::size_t at; most-- > 0 && (at = text.find(separator, from)) != std::string_view::npos;
       from = at + separator.size())
    parts.push_back(std::string(text.substr(from, at - from)));
  parts.push_back(std::string(text.substr(from)));
  return parts;
}

Value joined(const Value& parts, std::string_view separator, Index line) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text = added(std::move(text), separator, line);
    text = added(std::move(text), text_of(parts[i], line), line);
  }
  return text;
}

Value split(const Call& call) {
  call.takes(1, 2);
  if (call.text(0).empty()) call.refuse("at an empty text is not known");
  const std::int64_t most = call.positional.size() == 1 ? -1 : integer_of(call.positional[1], call.line, call.name);
  return parts_of(call.text(), call.text(0), most < 0 ? std::numeric_limits<std::int64_t>::max() : most);
}

Value replaced(const Call& call) {
  call.takes(2, 2);
  if (call.text(0).empty()) call.refuse("of an empty text is not known");
  return joined(parts_of(call.text(), call.text(0), std::numeric_limits<std::int64_t>::max()), call.text(1), call.line);
}

Value pairs_of(const Call& call) {
  call.takes(0, 0);
  if (!call.subject.is_object()) call.refuse(fmt::format("is applied to {}", kind_of(call.subject)));
  Value pairs = Value::array();
  for (const auto& [key, value] : call.subject.items()) pairs.push_back(Value::array({key, value}));
  return pairs;
}

Value member_of(const Value& value, const Value& name) {
  if (!value.is_object() || !name.is_string()) return undefined();
  const auto found = value.find(name.get_ref<const std::string&>());
  return found == value.end() ? undefined() : *found;
}

/// Throws for the name of a method that Python has for such a value: there it is no undefined value.
void check_no_method(const Value& value, std::string_view name, Index line) {
  constexpr std::string_view of_texts =
      " capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha "
      "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower "
      "lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split "
      "splitlines startswith strip swapcase title translate upper zfill ";
  constexpr std::string_view of_mappings = " clear copy fromkeys get items keys pop popitem setdefault update values ";
  constexpr std::string_view of_lists = " append clear copy count extend index insert pop remove reverse sort ";
  const std::string_view names = value.is_string()   ? of_texts
                                 : value.is_object() ? of_mappings
                                 : value.is_array()  ? of_lists
                                                     : "";
  if (names.find(fmt::format(" {} ", name)) != std::string_view::npos)
    fail(line, fmt::format("the method \"{}\" is not called", name));
}

template <bool (*holds)(const Value&)>
Value tested(const Call& call) {
  call.takes(0, 0);
  return holds(call.subject);
}

Value is_equal(const Call& call) {
  call.takes(1, 1);
  return equal(call.subject, call.positional[0]);
}

Value is_in(const Call& call) {
  call.takes(1, 1);
  return contains(call.positional[0], call.subject, call.line);
}

template <bool odd>
Value has_parity(const Call& call) {
  call.takes(0, 0);
  return (integer_of(call.subject, call.line, call.name) % 2 != 0) == odd;
}

const Functions tests{
    {"defined", tested<[](const Value& value) { return !value.is_discarded(); }>},
    {"undefined", tested<[](const Value& value) { return value.is_discarded(); }>},
    {"none", tested<[](const Value& value) { return value.is_null(); }>},
    {"string", tested<[](const Value& value) { return value.is_string(); }>},
    {"mapping", tested<[](const Value& value) { return value.is_object(); }>},
    {"iterable", tested<[](const Value& value) { return value.is_string() || !value.is_primitive(); }>},
    {"sequence", tested<[](const Value& value) { return value.is_string() || !value.is_primitive(); }>},
    {"number", tested<[](const Value& value) { return value.is_number() || value.is_boolean(); }>},
    {"integer", tested<[](const Value& value) { return value.is_number_integer(); }>},
    {"boolean", tested<[](const Value& value) { return value.is_boolean(); }>},
    {"true", tested<[](const Value& value) { return value == true; }>},
    {"false", tested<[](const Value& value) { return value == false; }>},
    {"odd", has_parity<true>},
    {"even", has_parity<false>},
    {"eq", is_equal},
    {"equalto", is_equal},
    {"==", is_equal},
    {"ne", [](const Call& call) -> Value { return !is_equal(call).get<bool>(); }},
    {"in", is_in},
};

/// Those of a list of mappings in which the test of a member holds, or does not.
template <bool wanted>
Value selected(const Call& call) {
  call.takes(1, 3);
  const std::string& name = call.text(0);
  if (name.find('.') != std::string::npos || std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c); }))
    call.refuse(fmt::format("by \"{}\" is not known", name));
  Value kept = Value::array();
  for (const Value& each : items_of(call.subject, call.line)) {
    Call test(call.name, call.line, call.now);
    test.subject = member_of(each, name);
    if (call.positional.size() == 3) test.positional.push_back(call.positional[2]);
    const bool holds = call.positional.size() == 1 ? is_true(test.subject)
                                                   : is_true(function_of(tests, call.text(1), "test", call.line)(test));
    if (holds == wanted) kept.push_back(each);
  }
  return kept;
}

Value defaulted(const Call& call) {
  std::array<Value, 2> arguments{Value(""), Value(false)};
  const std::array<std::string_view, 2> names{"default_value", "boolean"};
  if (call.positional.size() > 2) call.refuse("has arguments that are not known");
  std::ranges::copy(call.positional, arguments.begin());
  for (const auto& [name, value] : call.named) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) call.refuse("has arguments that are not known");
    arguments[static_cast<std::size_t>(found - names.begin())] = value;
  }
  const bool missing = call.subject.is_discarded() || (is_true(arguments[1]) && !is_true(call.subject));
  return missing ? arguments[0] : call.subject;
}

template <bool last>
Value end_of(const Call& call) {
  call.takes(0, 0);
  const Value items = items_of(call.subject, call.line);
  return items.empty() ? undefined() : last ? items.back() : items.front();
}

Value length(const Call& call) {
  call.takes(0, 0);
  if (call.subject.is_string()) return std::ranges::count_if(call.text(), begins_character);
  return static_cast<std::int64_t>(items_of(call.subject, call.line).size());
}

/// A method as a filter: it takes what would be written.
template <Value (*method)(const Call&)>
Value of_text(const Call& call) {
  Call written = call;
  written.subject = text_of(call.subject, call.line);
  return method(written);
}

const Functions filters{
    {"trim", of_text<stripped<true, true>>},
    {"lower", of_text<changed_case<std::tolower>>},
    {"upper", of_text<changed_case<std::toupper>>},
    {"capitalize", of_text<capitalized>},
    {"replace", of_text<replaced>},
    {"string", of_text<[](const Call& call) -> Value { return call.subject; }>},
    {"default", defaulted},
    {"d", defaulted},
    {"length", length},
    {"count", length},
    {"first", end_of<false>},
    {"last", end_of<true>},
    {"list", [](const Call& call) { return items_of(call.subject, call.line); }},
    {"items", pairs_of},
    {"join",
     [](const Call& call) {
       call.takes(0, 1);
       return joined(items_of(call.subject, call.line), call.positional.empty() ? "" : call.text(0), call.line);
     }},
    {"selectattr", selected<true>},
    {"rejectattr", selected<false>},
};

template <bool end>
Value has_end(const Call& call) {
  call.takes(1, 1);
  return end ? call.text().ends_with(call.text(0)) : call.text().starts_with(call.text(0));
}

const Functions methods_of_texts{
    {"strip", stripped<true, true>},
    {"lstrip", stripped<true, false>},
    {"rstrip", stripped<false, true>},
    {"lower", changed_case<std::tolower>},
    {"upper", changed_case<std::toupper>},
    {"capitalize", capitalized},
    {"replace", replaced},
    {"split", split},
    {"startswith", has_end<false>},
    {"endswith", has_end<true>},
};

const Functions methods_of_mappings{
    {"items", pairs_of},
    {"get",
     [](const Call& call) -> Value {
       call.takes(1, 2);
       const Value value = member_of(call.subject, call.positional[0]);
       return !value.is_discarded() ? value : call.positional.size() == 2 ? call.positional[1] : Value();
     }},
};

Value range(const Call& call) {
  call.takes(1, 3);
  std::array<std::int64_t, 3> of{0, 0, 1};  // begin, end, step
  for (std::size_t i = 0; i < call.positional.size(); ++i)
    of[call.positional.size() == 1 ? 1 : i] = integer_of(call.positional[i], call.line, call.name);
  std::int64_t count = 0;
  if (of[2] <= 0 || __builtin_sub_overflow(of[1], of[0], &count) || count > most_steps)
    call.refuse("of so many numbers, or of falling ones, is not known");
  Value numbers = Value::array();
  const std::int64_t step = std::min<std::int64_t>(of[2], most_steps);  // no sum overflows
  for (std::int64_t i = 0; i < count; i += step) numbers.push_back(of[0] + i);
  return numbers;
}

Value formatted_now(const Call& call) {
  call.takes(1, 1);
  constexpr std::string_view known = "aAbBcdHIjmMpSUwWxXyY%eFTDRrntuVGghClkP";  // not: zones, parts of a second
  const std::string_view format = call.text(0);
  for (std::size_t at = 0; (at = format.find('%', at)) != std::string_view::npos; ++at) {
    ++at;
    if (format.substr(at).starts_with('-')) ++at;  // "%-d": without a zero before it
    if (at >= format.size() || known.find(format[at]) == std::string_view::npos)
      call.refuse(fmt::format("of the format \"{}\" is not known", format));
  }
  std::array<char, 1024> text;
  const std::size_t size = std::strftime(text.data(), text.size(), call.text(0).c_str(), call.now);
  if ((size == 0 && !format.empty()) || format.find('\0') != std::string_view::npos)
    call.refuse("of a format that is too long, or has a zero byte, is not known");
  return std::string(text.data(), size);
}

const Functions functions{
    {"raise_exception",
     [](const Call& call) -> Value {
       call.takes(1, 1);
       call.refuse(fmt::format("says: {}", text_of(call.positional[0], call.line)));
     }},
    {"strftime_now", formatted_now},
    {"range", range},
    {"namespace",
     [](const Call& call) -> Value {
       if (!call.positional.empty()) call.refuse("has arguments that are not known");
       return call.named;
     }},
};

}  // namespace

// Rendering.

struct JinjaTemplate::Rendering {
  using Expression = std::function<Value(Rendering&)>;

  struct Variable {
    Value value;
    bool is_namespace = false;  ///< its members can be set
  };
  struct Macro {
    std::vector<std::pair<std::string, Expression>> parameters;  ///< and their defaults
    std::vector<Statement> body;
    bool takes_all = false;  ///< it has `varargs`, `kwargs` or `caller`
  };
  enum class Flow { on, next_turn, end_of_loop };

  std::tm now;
  std::vector<std::map<std::string, Variable>> scopes;  ///< the innermost last
  std::map<std::string, Macro> macros;
  std::string out;
  std::int64_t steps = 0;
  int depth = 0;  ///< of calls of macros
  Flow flow = Flow::on;

  Variable* find(const std::string& name) {
    const auto scope = std::find_if(scopes.rbegin(), scopes.rend(), [&](const auto& s) { return s.contains(name); });
    return scope == scopes.rend() ? nullptr : &scope->at(name);
  }

  void set(const std::string& name, Value value, Index line, bool is_namespace = false) {
    check_depth(value, line);
    scopes.back()[name] = {std::move(value), is_namespace};
  }

  void write(std::string_view text, Index line) { out = added(std::move(out), text, line); }

  void count_steps(Index line, std::int64_t count = 1) {
    if (count > most_steps - steps) fail(line, fmt::format("it takes more than {} steps", most_steps));
    steps += count;
  }

  void run(const std::vector<Statement>& statements) {
    for (const Statement& statement : statements) {
      statement(*this);
      if (flow != Flow::on) return;
    }
  }

  void run_in_scope(const std::vector<Statement>& statements) {
    scopes.emplace_back();
    run(statements);
    scopes.pop_back();
  }

  /// What the statements write, in a scope of their own.
  std::string captured(const std::vector<Statement>& statements) {
    std::string before = std::exchange(out, {});
    run_in_scope(statements);
    return std::exchange(out, std::move(before));
  }

  Value call_macro(const Macro& macro, const Call& call) {
    if (macro.takes_all) call.refuse("with arguments of any number is not known");
    if (++depth > deepest_macro) call.refuse("is called too deeply");
    // A macro knows the variables of the template, not those of the loop that calls it. It can set members of the
    // namespaces among them.
    auto callers = std::move(scopes);
    scopes.clear();
    scopes.push_back(std::move(callers.front()));
    scopes.emplace_back();
    if (call.positional.size() > macro.parameters.size()) call.refuse("has arguments that are not known");
    for (const auto& named : call.named) {
      if (std::ranges::none_of(macro.parameters, [&](const auto& each) { return each.first == named.first; }))
        call.refuse("has arguments that are not known");
    }
    for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
      const auto& [name, otherwise] = macro.parameters[i];
      const auto named = call.named.find(name);
      set(name,
          i < call.positional.size()  ? call.positional[i]
          : named != call.named.end() ? named->second
          : otherwise                 ? otherwise(*this)
                                      : undefined(),
          call.line);
    }
    std::string text = captured(macro.body);
    callers.front() = std::move(scopes.front());
    scopes = std::move(callers);
    --depth;
    return text;
  }
};

namespace {

using Rendering = JinjaTemplate::Rendering;
using Statement = JinjaTemplate::Statement;
using Expression = Rendering::Expression;

// Tokens.

enum class Kind { text, output, statement, name, string, number, sign, end };

struct Token {
  Kind kind;
  std::string text;  ///< of a sign or name itself, of a string what it stands for; of `end` its sign
  Index line = 0;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> tokens() {
    while (at_ < source_.size()) {
      std::size_t begin = source_.find('{', at_);
      while (begin != std::string_view::npos && (begin + 1 == source_.size() || !holds("{%#", source_[begin + 1])))
        begin = source_.find('{', begin + 1);
      if (begin == std::string_view::npos) begin = source_.size();
      read_text(begin);
      if (begin < source_.size()) read_tag();
    }
    add(Kind::end, "");
    return std::move(tokens_);
  }

 private:
  static bool holds(std::string_view set, char c) { return set.find(c) != std::string_view::npos; }
  bool next_is(std::string_view text) const { return source_.substr(at_).starts_with(text); }
  void add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(std::size_t count) {
    line_ += std::ranges::count(source_.substr(at_, count), '\n');
    at_ += count;
  }

  /// The text up to the tag that begins at `end`. `{%-` takes off all white space before it; without a sign, a
  /// statement and a comment take off the indentation of their line.
  void read_text(std::size_t end) {
    std::string_view text = source_.substr(at_, end - at_);
    const char sign = end + 2 < source_.size() ? source_[end + 2] : ' ';
    if (end < source_.size() && sign == '-') {
      text.remove_suffix(trailing_space(text));
    } else if (end < source_.size() && sign != '+' && source_[end + 1] != '{') {
      const std::size_t line_start = text.rfind('\n') + 1;
      const std::string_view indentation = text.substr(line_start);
      if ((line_start > 0 || starts_line_) && leading_space(indentation) == indentation.size())
        text = text.substr(0, line_start);
    }
    if (!text.empty()) add(Kind::text, std::string(text));
    advance(end - at_);
  }

  void read_tag() {
    const Index line = line_;
    const char kind = source_[at_ + 1];
    advance(2);
    if (at_ < source_.size() && holds("-+", source_[at_])) advance(1);
    if (kind == '#') {
      const std::size_t end = source_.find("#}", at_);
      if (end == std::string_view::npos) fail(line_, "a comment does not end");
      const char sign = end > at_ ? source_[end - 1] : ' ';
      advance(end - at_);
      end_tag("#}", sign);
      return;
    }
    add(kind == '%' ? Kind::statement : Kind::output, "");
    const std::string_view end = kind == '%' ? "%}" : "}}";
    for (Index open = 0;;) {
      advance(leading_space(source_.substr(at_)));
      if (at_ == source_.size()) fail(line, fmt::format("a tag does not end with {}", end));
      const char sign = source_[at_];
      if (open == 0 && holds("-+", sign) && source_.substr(at_ + 1).starts_with(end) && (kind == '%' || sign == '-')) {
        advance(1);
        return end_tag(end, sign);
      }
      if (open == 0 && next_is(end)) return end_tag(end, ' ');
      read_token();
      const Token& read = tokens_.back();
      if (read.kind != Kind::sign) continue;
      if (holds("([{", read.text[0])) ++open;
      if (holds(")]}", read.text[0]) && --open < 0) fail(line_, fmt::format("\"{}\" closes nothing", read.text));
    }
  }

  /// "-" takes off all white space behind a tag; else a statement and a comment take off the end of their line, without
  /// "+".
  void end_tag(std::string_view end, char sign) {
    if (end != "#}") add(Kind::end, std::string(end));
    advance(2);
    if (sign == '-')
      advance(leading_space(source_.substr(at_)));
    else if (sign != '+' && end != "}}" && next_is("\n"))
      advance(1);
    starts_line_ = source_[at_ - 1] == '\n';
  }

  void read_token() {
    const char c = source_[at_];
    std::size_t size = 0;
    const auto more = [&](auto test) {
      while (at_ + size < source_.size() && test(static_cast<unsigned char>(source_[at_ + size]))) ++size;
    };
    if (holds("'\"", c)) return read_string(c);
    if (std::isdigit(static_cast<unsigned char>(c))) {
      more([](unsigned char d) { return std::isdigit(d) != 0; });
      return add_part(Kind::number, size);
    }
    if (std::isalpha(static_cast<unsigned char>(c)) || c == '_') {
      more([](unsigned char d) { return std::isalnum(d) || d == '_'; });
      return add_part(Kind::name, size);
    }
    for (const std::string_view two : {"==", "!=", "<=", ">=", "//", "**"}) {
      if (next_is(two)) return add_part(Kind::sign, 2);
    }
    if (!holds("+-*/%~<>=()[]{}.,:|", c)) {
      for (size = 1; at_ + size < source_.size() && !begins_character(source_[at_ + size]);) ++size;
      fail(line_, fmt::format("\"{}\" is not known in a tag", source_.substr(at_, size)));
    }
    add_part(Kind::sign, 1);
  }

  void add_part(Kind kind, std::size_t size) {
    add(kind, std::string(source_.substr(at_, size)));
    advance(size);
  }

  void read_string(char quote) {
    const Index line = line_;
    std::string text;
    for (advance(1); at_ < source_.size() && source_[at_] != quote;) {
      if (source_[at_] == '\\') {
        text += escaped();
      } else {
        text += source_[at_];
        advance(1);
      }
    }
    if (at_ == source_.size()) fail(line, "a text in quotes does not end");
    advance(1);
    tokens_.push_back({Kind::string, std::move(text), line});
  }

  /// What Python's escape that begins here stands for.
  std::string escaped() {
    constexpr std::string_view simple = "nrtabfv\\'\"0", stand_for{"\n\r\t\a\b\f\v\\'\"\0", 11};
    const char letter = at_ + 1 < source_.size() ? source_[at_ + 1] : ' ';
    const std::size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    if (digits > 0) {
      const std::string_view written = source_.substr(std::min(at_ + 2, source_.size()), digits);
      std::uint32_t code = 0;
      const auto end = std::from_chars(written.data(), written.data() + written.size(), code, 16).ptr;
      if (written.size() != digits || end != written.data() + digits || code > 0x10ffff || (code >> 11) == 0x1b)
        fail(line_, fmt::format("the escape \\{}{} stands for no character", letter, written));
      advance(2 + digits);
      return utf8(icu::UnicodeString(static_cast<UChar32>(code)));
    }
    const std::size_t known = simple.find(letter);
    const bool octal = known == std::string_view::npos ? std::isdigit(static_cast<unsigned char>(letter)) != 0
                                                       : letter == '0' && at_ + 2 < source_.size() &&
                                                             std::isdigit(static_cast<unsigned char>(source_[at_ + 2]));
    if (octal || letter == 'N') fail(line_, fmt::format("the escape \\{} is not known", letter));
    if (letter == '\n') {
      advance(2);
      return {};
    }
    advance(1);  // Python keeps the "\" of any other
    if (known == std::string_view::npos) return "\\";
    advance(1);
    return {stand_for[known]};
  }

  std::string_view source_;
  std::size_t at_ = 0;
  Index line_ = 1;
  bool starts_line_ = true;
  std::vector<Token> tokens_;
};

// Expressions.

std::int64_t computed(std::string_view sign, std::int64_t a, std::int64_t b, Index line) {
  std::int64_t result = 0;
  bool fits = true;
  if (sign == "+") {
    fits = !__builtin_add_overflow(a, b, &result);
  } else if (sign == "-") {
    fits = !__builtin_sub_overflow(a, b, &result);
  } else if (sign == "*") {
    fits = !__builtin_mul_overflow(a, b, &result);
  } else if ((sign == "//" || sign == "%") && b > 0) {
    const bool below = a % b < 0;  // Python rounds down
    result = sign == "%" ? a % b + (below ? b : 0) : a / b - static_cast<int>(below);
  } else {
    fits = false;
  }
  if (!fits) fail(line, fmt::format("{} {} {} is not known", a, sign, b));
  return result;
}

Value computed(std::string_view sign, Value a, const Value& b, Index line) {
  if (sign == "~") return added(text_of(a, line), text_of(b, line), line);
  if (sign == "+" && a.is_string() && b.is_string())
    return added(std::move(a.get_ref<std::string&>()), b.get_ref<const std::string&>(), line);
  if (sign == "+" && a.is_array() && b.is_array()) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  if (a.is_number_integer() && b.is_number_integer())
    return computed(sign, a.get<std::int64_t>(), b.get<std::int64_t>(), line);
  fail(line, fmt::format("{} {} {} is not known", kind_of(a), sign, kind_of(b)));
}

bool compared(std::string_view sign, const Value& a, const Value& b, Index line) {
  if (sign == "==") return equal(a, b);
  if (sign == "!=") return !equal(a, b);
  if (sign == "in") return contains(b, a, line);
  if (sign == "not in") return !contains(b, a, line);
  if (!(a.is_string() && b.is_string()) && !(a.is_number() && b.is_number()))
    fail(line, fmt::format("{} {} {} is not known", kind_of(a), sign, kind_of(b)));
  return sign == "<" ? a < b : sign == ">" ? b < a : sign == "<=" ? !(b < a) : !(a < b);
}

/// `value`, a member of which is taken. An undefined value is an error.
const Value& with_members(const Value& value, Index line) {
  if (value.is_discarded()) fail(line, "a member of an undefined value is taken");
  return value;
}

/// `value[key]`.
Value item_of(const Value& value, const Value& key, Index line) {
  Value member = member_of(with_members(value, line), key);
  if (!member.is_discarded()) return member;
  if (key.is_string()) check_no_method(value, key.get_ref<const std::string&>(), line);
  if (key.is_string() || (!value.is_array() && !value.is_string())) return undefined();
  const Value items = items_of(value, line);
  const auto size = static_cast<std::int64_t>(items.size());
  std::int64_t index = integer_of(key, line, "an index");
  if (index < 0) index += size;
  return index < 0 || index >= size ? undefined() : items[static_cast<std::size_t>(index)];
}

/// `value[begin:end:step]`; null where one is left out.
Value slice_of(const Value& value, const Value& begin, const Value& end, const Value& step_, Index line) {
  if (!with_members(value, line).is_array() && !value.is_string()) return undefined();
  const Value items = items_of(value, line);
  const auto size = static_cast<std::int64_t>(items.size());
  const std::int64_t step = step_.is_null() ? 1 : integer_of(step_, line, "the step of a slice");
  if (step != 1 && step != -1) fail(line, fmt::format("a slice of step {} is not known; 1 and -1 are", step));
  const std::int64_t least = step > 0 ? 0 : -1, most = step > 0 ? size : size - 1;
  const auto bound = [&](const Value& at, std::int64_t otherwise) {
    if (at.is_null()) return otherwise;
    const std::int64_t index = integer_of(at, line, "a bound of a slice");
    return std::clamp(index < 0 ? std::max(index, -size - 1) + size : index, least, most);
  };
  Value kept = Value::array();
  const std::int64_t from = bound(begin, step > 0 ? least : most), to = bound(end, step > 0 ? most : least);
  for (std::int64_t i = from; step > 0 ? i < to : i > to; i += step) kept.push_back(items[static_cast<std::size_t>(i)]);
  return value.is_array() ? kept : joined(kept, "", line);
}

/// What makes of a value another one: a filter for example.
using Change = std::function<Value(Rendering&, Value)>;

/// Arguments of a call.
struct Arguments {
  std::vector<Expression> positional;
  std::vector<std::pair<std::string, Expression>> named;

  Call call(Rendering& rendering, std::string name, Index line) const {
    Call made(std::move(name), line, &rendering.now);
    rendering.count_steps(line);
    for (const Expression& argument : positional) made.positional.push_back(argument(rendering));
    for (const auto& [key, argument] : named) made.named[key] = argument(rendering);
    return made;
  }
};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  std::vector<Statement> whole() { return statements({}).first; }

 private:
  using Names = std::initializer_list<std::string_view>;

  /// Counts how deeply the template nests, since each level takes of the stack.
  struct Level {
    explicit Level(Parser& parser) : depth(parser.depth_) {
      if (++depth > deepest) fail(parser.line(), fmt::format("it nests more than {} levels", deepest));
    }
    ~Level() { --depth; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    int& depth;
  };

  const Token& token() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Index line() const { return token().line; }
  bool at(Kind kind, std::string_view text) const { return token().kind == kind && token().text == text; }
  bool at_sign(std::string_view text) const { return at(Kind::sign, text); }
  bool at_name(Names names) const { return token().kind == Kind::name && std::ranges::count(names, token().text) > 0; }
  bool skip(Kind kind, std::string_view text) {
    const bool here = at(kind, text);
    at_ += here;
    return here;
  }
  bool skip_sign(std::string_view text) { return skip(Kind::sign, text); }
  bool skip_name(std::string_view text) { return skip(Kind::name, text); }
  [[noreturn]] void expected(std::string_view what) const {
    const bool ends = token().kind != Kind::name && token().kind != Kind::sign && token().kind != Kind::number;
    fail(line(), fmt::format("{} stands where {} is expected",
                             ends ? "something else" : fmt::format("\"{}\"", token().text), what));
  }
  void expect(Kind kind, std::string_view text) {
    if (!skip(kind, text)) expected(fmt::format("\"{}\"", text));
  }
  std::string name() {
    if (token().kind != Kind::name) expected("a name");
    return tokens_[at_++].text;
  }

  /// Calls `read` at each element of a list. Commas separate the elements, `close` ends the list. A comma may stand
  /// before `close`.
  template <class Read>
  void read_all(std::string_view close, const Read& read) {
    for (bool first = true; !skip_sign(close); first = false) {
      if (!first) expect(Kind::sign, ",");
      if (!at_sign(close)) read();
    }
  }

  // Statements.

  /// Up to a statement that is one of `ends`, and which one that is; without `ends` up to the end of the template.
  std::pair<std::vector<Statement>, std::string> statements(Names ends) {
    const Level level(*this);
    std::vector<Statement> all;
    for (;;) {
      const Token& first = tokens_[at_++];
      if (first.kind == Kind::end) {
        if (ends.size() > 0) fail(first.line, fmt::format("{{% {} %}} is missing", *(ends.end() - 1)));
        return {std::move(all), ""};
      }
      if (first.kind == Kind::text) {
        all.emplace_back([text = first.text, line = first.line](Rendering& rendering) { rendering.write(text, line); });
      } else if (first.kind == Kind::output) {
        all.emplace_back([value = condexpr(), line = first.line](Rendering& rendering) {
          rendering.write(text_of(value(rendering), line), line);
        });
        expect(Kind::end, "}}");
      } else {
        if (at_name(ends)) return {std::move(all), name()};
        Statement read = statement();
        all.emplace_back([read = std::move(read), line = first.line](Rendering& rendering) {
          rendering.count_steps(line);
          read(rendering);
        });
      }
    }
  }

  void end_statement() { expect(Kind::end, "%}"); }

  Statement statement() {
    const Index line = this->line();
    const std::string kind = name();
    if (kind == "if") return choice();
    if (kind == "for") return iteration();
    if (kind == "set") return set();
    if (kind == "macro") return macro();
    if (kind == "generation") {
      end_statement();
      auto body = body_of_its_own("endgeneration");
      return [body = std::move(body), line](Rendering& rendering) { rendering.write(rendering.captured(body), line); };
    }
    if (kind == "break" || kind == "continue") {
      if (loops_ == 0) fail(line, fmt::format("\"{}\" is known in a loop's own statements alone", kind));
      end_statement();
      const auto flow = kind == "break" ? Rendering::Flow::end_of_loop : Rendering::Flow::next_turn;
      return [flow](Rendering& rendering) { rendering.flow = flow; };
    }
    fail(line,
         fmt::format("the statement \"{}\" is not known; known are break, continue, for, generation, if, macro, set",
                     kind));
  }

  /// What is run apart from the loop around it.
  std::vector<Statement> body_of_its_own(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    auto body = statements({end}).first;
    end_statement();
    loops_ = loops;
    return body;
  }

  Statement choice() {
    std::vector<std::pair<Expression, std::vector<Statement>>> branches;
    std::string ended = "elif";
    while (ended == "elif" || ended == "else") {
      Expression condition = ended == "elif" ? disjunction() : [](Rendering&) -> Value { return true; };
      end_statement();
      auto [body, end] = ended == "elif" ? statements({"elif", "else", "endif"}) : statements({"endif"});
      branches.emplace_back(std::move(condition), std::move(body));
      ended = end;
    }
    end_statement();
    return [branches = std::move(branches)](Rendering& rendering) {
      for (const auto& [condition, body] : branches) {
        if (is_true(condition(rendering))) return rendering.run(body);
      }
    };
  }

  /// `name` or `name, name`.
  std::vector<std::string> targets() {
    std::vector<std::string> names{name()};
    while (skip_sign(",")) names.push_back(name());
    return names;
  }

  static void assign(Rendering& rendering, const std::vector<std::string>& names, const Value& value, Index line) {
    if (names.size() == 1) return rendering.set(names[0], value, line);
    if (!value.is_array() || value.size() != names.size())
      fail(line, fmt::format("{} names are set to {}", names.size(), kind_of(value)));
    for (std::size_t i = 0; i < names.size(); ++i) rendering.set(names[i], value[i], line);
  }

  bool has_name_since(std::size_t begin, Names names) const {
    return std::any_of(&tokens_[begin], &tokens_[at_], [&](const Token& token) {
      return token.kind == Kind::name && std::ranges::count(names, token.text) > 0;
    });
  }

  /// `loop` in turn `i`.
  static Value loop_variable(const Value& items, std::size_t i) {
    const std::size_t count = items.size();
    Value loop{{"index", i + 1},  {"index0", i}, {"revindex", count - i},  {"revindex0", count - i - 1},
               {"first", i == 0}, {"depth", 1},  {"last", i + 1 == count}, {"depth0", 0},
               {"length", count}};
    if (i > 0) loop["previtem"] = items[i - 1];
    if (i + 1 < count) loop["nextitem"] = items[i + 1];
    return loop;
  }

  Statement iteration() {
    const Index line = this->line();
    auto names = targets();
    expect(Kind::name, "in");
    Expression iterated = disjunction();
    Expression condition = skip_name("if") ? condexpr() : Expression();
    end_statement();
    const std::size_t begin = at_;
    ++loops_;
    auto [body, ended] = statements({"else", "endfor"});
    --loops_;
    // `loop` is made only where the body names it: that takes longer than the rest of a short turn.
    const bool names_loop = has_name_since(begin, {"loop"});
    std::vector<Statement> otherwise;
    end_statement();
    if (ended == "else") {
      otherwise = statements({"endfor"}).first;
      end_statement();
    }
    return [=, names = std::move(names), iterated = std::move(iterated), condition = std::move(condition),
            body = std::move(body), otherwise = std::move(otherwise)](Rendering& rendering) {
      Value items = items_of(iterated(rendering), line);
      if (condition) {
        Value kept = Value::array();
        for (Value& item : items) {
          rendering.count_steps(line);
          rendering.scopes.emplace_back();
          assign(rendering, names, item, line);
          if (is_true(condition(rendering))) kept.push_back(std::move(item));
          rendering.scopes.pop_back();
        }
        items = std::move(kept);
      }
      bool whole_turn = false;
      const std::size_t count = items.size();
      for (std::size_t i = 0; i < count; ++i) {
        rendering.count_steps(line);
        rendering.scopes.emplace_back();
        if (names_loop) rendering.set("loop", loop_variable(items, i), line);
        assign(rendering, names, items[i], line);
        rendering.run(body);
        rendering.scopes.pop_back();
        const Rendering::Flow flow = std::exchange(rendering.flow, Rendering::Flow::on);
        if (flow == Rendering::Flow::end_of_loop) break;
        whole_turn = whole_turn || flow == Rendering::Flow::on;
      }
      if (!whole_turn) rendering.run_in_scope(otherwise);  // Jinja does so, not only where nothing is looped through
    };
  }

  Statement set() {
    const Index line = this->line();
    if (next().kind == Kind::sign && next().text == ".") {
      std::string variable = name();
      expect(Kind::sign, ".");
      std::string member = name();
      expect(Kind::sign, "=");
      Expression value = condexpr();
      end_statement();
      return [=, value = std::move(value)](Rendering& rendering) {
        Value result = value(rendering);
        check_depth(result, line);
        Rendering::Variable* const found = rendering.find(variable);
        if (found == nullptr || !found->is_namespace) fail(line, fmt::format("\"{}\" is no namespace", variable));
        found->value[member] = std::move(result);
      };
    }
    auto names = targets();
    if (skip_sign("=")) {
      bool makes_namespace = false;
      if (names.size() == 1 && at_name({"namespace"}) && next().text == "(") {  // and there is nothing behind it
        const std::size_t begin = std::exchange(at_, at_ + 1);
        (void)arguments();
        makes_namespace = token().kind == Kind::end;
        at_ = begin;
      }
      Expression value = tuple();
      end_statement();
      return [=, names = std::move(names), value = std::move(value)](Rendering& rendering) {
        Value result = value(rendering);
        if (makes_namespace && result.is_object()) return rendering.set(names[0], std::move(result), line, true);
        assign(rendering, names, result, line);
      };
    }
    end_statement();
    auto body = body_of_its_own("endset");
    return [=, names = std::move(names), body = std::move(body)](Rendering& rendering) {
      assign(rendering, names, rendering.captured(body), line);
    };
  }

  Statement macro() {
    const Index line = this->line();
    std::string called = name();
    Rendering::Macro made;
    expect(Kind::sign, "(");
    read_all(")", [&] {
      std::string parameter = name();
      made.parameters.emplace_back(std::move(parameter), skip_sign("=") ? condexpr() : Expression());
    });
    end_statement();
    const std::size_t begin = at_;
    made.body = body_of_its_own("endmacro");
    made.takes_all = has_name_since(begin, {"varargs", "kwargs", "caller"});
    return [=, made = std::move(made)](Rendering& rendering) {
      if (rendering.scopes.size() > 1) fail(line, "a macro inside of a loop or another macro is not known");
      rendering.macros[called] = made;
    };
  }

  // Expressions, the loosest first.

  Expression tuple() {
    const Index line = this->line();
    Expression first = condexpr();
    if (!at_sign(",")) return first;
    std::vector<Expression> all{std::move(first)};
    while (skip_sign(",")) {
      if (at_sign(")") || token().kind == Kind::end) break;
      all.push_back(condexpr());
    }
    return list(std::move(all), line);
  }

  static Expression list(std::vector<Expression> all, Index line) {
    return [all = std::move(all), line](Rendering& rendering) {
      rendering.count_steps(line);
      Value values = Value::array();
      for (const Expression& each : all) values.push_back(each(rendering));
      return values;
    };
  }

  Expression condexpr() {
    const Level level(*this);
    Expression value = disjunction();
    std::vector<std::pair<Expression, Expression>> choices;  // a condition and what is given where it does not hold
    while (skip_name("if")) {
      Expression condition = disjunction();
      choices.emplace_back(
          std::move(condition), skip_name("else") ? condexpr() : [](Rendering&) { return undefined(); });
    }
    if (choices.empty()) return value;
    std::ranges::reverse(choices);  // the last one decides first
    return [value = std::move(value), choices = std::move(choices)](Rendering& rendering) {
      for (const auto& [condition, otherwise] : choices) {
        if (!is_true(condition(rendering))) return otherwise(rendering);
      }
      return value(rendering);
    };
  }

  /// The value of `first` after all changes. A loop: functions within functions would take of the stack.
  static Expression changed(Expression first, std::vector<Change> changes) {
    if (changes.empty()) return first;
    return [first = std::move(first), changes = std::move(changes)](Rendering& rendering) {
      Value value = first(rendering);
      for (const Change& change : changes) value = change(rendering, std::move(value));
      return value;
    };
  }

  /// Operands of `and` or `or`, which is `word`: the first one that is true is the value of `or`.
  Expression junction(std::string_view word, Expression (Parser::*operand)()) {
    Expression first = (this->*operand)();
    std::vector<Change> changes;
    while (skip_name(word)) {
      changes.emplace_back([right = (this->*operand)(), is_or = word == "or"](Rendering& rendering, const Value& left) {
        return is_true(left) == is_or ? left : right(rendering);
      });
    }
    return changed(std::move(first), std::move(changes));
  }
  Expression disjunction() { return junction("or", &Parser::conjunction); }
  Expression conjunction() { return junction("and", &Parser::negation); }

  Expression negation() {
    if (!skip_name("not")) return compare();
    const Level level(*this);
    return [value = negation()](Rendering& rendering) -> Value { return !is_true(value(rendering)); };
  }

  Expression compare() {
    const Index line = this->line();
    Expression first = math1();
    std::vector<std::pair<std::string, Expression>> others;
    for (;;) {
      std::string sign;
      if (token().kind == Kind::sign && std::ranges::count(std::array{"==", "!=", "<", ">", "<=", ">="}, token().text))
        sign = token().text;
      else if (at_name({"in"}))
        sign = "in";
      else if (at_name({"not"}) && next().kind == Kind::name && next().text == "in")
        sign = "not in";
      else
        break;
      at_ += sign == "not in" ? 2 : 1;
      Expression operand = math1();
      others.emplace_back(std::move(sign), std::move(operand));
    }
    if (others.empty()) return first;
    return [first = std::move(first), others = std::move(others), line](Rendering& rendering) -> Value {
      Value left = first(rendering);
      for (const auto& [sign, operand] : others) {
        Value right = operand(rendering);
        if (!compared(sign, left, right, line)) return false;
        left = std::move(right);
      }
      return true;
    };
  }

  /// Operators of one rank, whose operands are read by `operand`.
  Expression operations(Names signs, Expression (Parser::*operand)()) {
    Expression first = (this->*operand)();
    std::vector<Change> changes;
    while (token().kind == Kind::sign && std::ranges::count(signs, token().text) > 0) {
      const Token sign = tokens_[at_++];
      changes.emplace_back([right = (this->*operand)(), sign](Rendering& rendering, Value left) {
        Value result = computed(sign.text, std::move(left), right(rendering), sign.line);
        if (result.is_array()) rendering.count_steps(sign.line, std::ssize(result));
        return result;
      });
    }
    return changed(std::move(first), std::move(changes));
  }
  Expression math1() { return operations({"+", "-"}, &Parser::concat); }
  Expression concat() { return operations({"~"}, &Parser::math2); }
  Expression math2() { return operations({"*", "/", "//", "%"}, &Parser::pow); }
  Expression pow() { return operations({"**"}, &Parser::filtered_unary); }
  Expression filtered_unary() { return unary(true); }

  Expression unary(bool with_filter) {
    const Index line = this->line();
    const std::size_t begin = at_;
    Expression value;
    if (at_sign("-") || at_sign("+")) {
      const Level level(*this);
      const std::string sign = tokens_[at_++].text;
      value = [operand = unary(false), sign, line](Rendering& rendering) {
        return computed(sign, Value(0), operand(rendering), line);
      };
    } else {
      value = postfix(primary());
    }
    return with_filter ? filter_expr(std::move(value), begin) : value;
  }

  Expression primary() {
    const Token& first = tokens_[at_++];
    const Index line = first.line;
    if (first.kind == Kind::string) {
      std::string text = first.text;
      while (token().kind == Kind::string) text += tokens_[at_++].text;
      return constant(std::move(text));
    }
    if (first.kind == Kind::number) {
      if (at_sign(".") && next().kind == Kind::number) {
        const std::string fraction = tokens_[std::exchange(at_, at_ + 2) + 1].text;
        return [number = fmt::format("{}.{}", first.text, fraction), line](Rendering&) -> Value {
          fail(line, fmt::format("the number {} is not known", number));
        };
      }
      std::int64_t value = 0;
      const char* const end = first.text.data() + first.text.size();
      const auto read = std::from_chars(first.text.data(), end, value);
      if (read.ec != std::errc() || read.ptr != end) fail(line, fmt::format("the number {} is not known", first.text));
      return constant(value);
    }
    if (first.kind == Kind::name) {
      if (first.text == "true" || first.text == "True") return constant(true);
      if (first.text == "false" || first.text == "False") return constant(false);
      if (first.text == "none" || first.text == "None") return constant(nullptr);
      if (at_sign("(")) return function_call(first.text, line);
      return variable(first.text, line, at_sign(".") || at_sign("["));
    }
    if (first.kind == Kind::sign && first.text == "(") {
      Expression inner = tuple();
      expect(Kind::sign, ")");
      return inner;
    }
    if (first.kind == Kind::sign && first.text == "[") {
      std::vector<Expression> all;
      read_all("]", [&] { all.push_back(condexpr()); });
      return list(std::move(all), line);
    }
    if (first.kind == Kind::sign && first.text == "{") return mapping(line);
    --at_;
    expected("a value");
  }

  static Expression constant(Value value) {
    return [value = std::move(value)](Rendering&) { return value; };
  }

  /// A variable, of which a member may be taken: then it may be a namespace.
  static Expression variable(const std::string& name, Index line, bool takes_member) {
    return [=](Rendering& rendering) {
      const Rendering::Variable* const found = rendering.find(name);
      if (found != nullptr && found->is_namespace && !takes_member)
        fail(line, fmt::format("the namespace \"{}\" as a value is not known", name));
      if (found != nullptr) return found->value;
      const bool is_function = rendering.macros.contains(name) || functions.contains(name);
      return is_function && !takes_member ? Value::binary({}) : undefined();
    };
  }

  Expression mapping(Index line) {
    std::vector<std::pair<Expression, Expression>> members;
    read_all("}", [&] {
      Expression key = condexpr();
      expect(Kind::sign, ":");
      members.emplace_back(std::move(key), condexpr());
    });
    return [members = std::move(members), line](Rendering& rendering) {
      rendering.count_steps(line);
      Value made = Value::object();
      for (const auto& [key, value] : members)
        made[string_of(key(rendering), line, "the key of a mapping")] = value(rendering);
      return made;
    };
  }

  /// Members, items and methods of a value.
  Expression postfix(Expression value) {
    std::vector<Change> changes;
    for (;;) {
      const Index line = this->line();
      if (skip_sign(".")) {
        const std::string member = name();
        changes.push_back(at_sign("(") ? method(member, line) : [member, line](Rendering&, const Value& of) {
          check_no_method(with_members(of, line), member, line);
          return member_of(of, member);
        });
      } else if (skip_sign("[")) {
        changes.push_back(subscript(line));
      } else if (at_sign("(")) {
        fail(line, "what is called has no name");
      } else {
        return changed(std::move(value), std::move(changes));
      }
    }
  }

  Change method(const std::string& member, Index line) {
    return [member, line, arguments = arguments()](Rendering& rendering, Value of) {
      Call call = arguments.call(rendering, fmt::format("method \"{}\"", member), line);
      call.subject = std::move(of);
      if (!call.subject.is_object() && !call.subject.is_string())
        call.refuse(fmt::format("of {} is not known", kind_of(call.subject)));
      return function_of(call.subject.is_object() ? methods_of_mappings : methods_of_texts, member, "method",
                         line)(call);
    };
  }

  Expression function_call(const std::string& name, Index line) {
    return [name, line, arguments = arguments()](Rendering& rendering) {
      const Call call = arguments.call(rendering, fmt::format("function \"{}\"", name), line);
      if (rendering.find(name) != nullptr) call.refuse("is no function but a variable");
      const auto macro = rendering.macros.find(name);
      if (macro != rendering.macros.end()) return rendering.call_macro(macro->second, call);
      Value result = function_of(functions, name, "function", line)(call);
      if (result.is_array()) rendering.count_steps(line, std::ssize(result));
      return result;
    };
  }

  Change subscript(Index line) {
    std::array<Expression, 3> parts;  // of a slice
    std::size_t part = 0;
    bool is_slice = false;
    while (!at_sign("]")) {
      if (skip_sign(":")) {
        is_slice = true;
        if (++part == parts.size()) expected("\"]\"");
      } else if (parts[part]) {
        expected("\"]\"");
      } else {
        parts[part] = condexpr();
      }
    }
    if (!is_slice && !parts[0]) expected("an index");
    expect(Kind::sign, "]");
    return [parts = std::move(parts), is_slice, line](Rendering& rendering, const Value& value) {
      const auto at = [&](std::size_t i) { return parts[i] ? parts[i](rendering) : Value(); };
      return is_slice ? slice_of(value, at(0), at(1), at(2), line) : item_of(value, at(0), line);
    };
  }

  Arguments arguments() {
    Arguments made;
    expect(Kind::sign, "(");
    read_all(")", [&] {
      if (token().kind == Kind::name && next().kind == Kind::sign && next().text == "=") {
        std::string key = name();
        expect(Kind::sign, "=");
        made.named.emplace_back(std::move(key), condexpr());
      } else {
        made.positional.push_back(condexpr());
      }
    });
    return made;
  }

  /// Filters and tests of a value whose first token is at `begin`.
  Expression filter_expr(Expression value, std::size_t begin) {
    std::vector<Change> changes;
    for (;;) {
      const Index line = this->line();
      if (skip_sign("|")) {
        const std::string filter = name();
        changes.push_back(applied(filters, "filter", filter, at_sign("(") ? arguments() : Arguments(), line));
        if (std::ranges::count(std::array{"selectattr", "rejectattr", "items"}, filter) > 0 && !is_run_through(begin))
          changes.emplace_back([filter, line](Rendering&, const Value&) -> Value {
            fail(line,
                 fmt::format("what the filter \"{}\" gives is known in a loop, and before the filters first, join "
                             "and list",
                             filter));
          });
      } else if (skip_name("is")) {
        changes.push_back(test(line));
      } else if (at_sign("(")) {
        fail(line, "what is called has no name");
      } else {
        return changed(std::move(value), std::move(changes));
      }
    }
  }

  /// Whether the value that ends here is only run through: there a list does for Python's generator.
  bool is_run_through(std::size_t begin) const {
    if (at_sign("|")) return next().kind == Kind::name && std::ranges::count(run_through, next().text) > 0;
    const Token& before = tokens_[begin - 1];
    return before.kind == Kind::name && before.text == "in" && (token().kind == Kind::end || at_name({"if"}));
  }
  static constexpr std::array<std::string_view, 5> run_through{"first", "join", "list", "rejectattr", "selectattr"};

  static Change applied(const Functions& known, std::string_view kind, const std::string& name, Arguments arguments,
                        Index line) {
    return [&known, kind, name, arguments = std::move(arguments), line](Rendering& rendering, Value value) {
      Call call = arguments.call(rendering, fmt::format("{} \"{}\"", kind, name), line);
      call.subject = std::move(value);
      return function_of(known, name, kind, line)(call);
    };
  }

  Change test(Index line) {
    const bool negated = skip_name("not");
    const std::string which = name();
    if (at_name({"is"})) expected("an argument of a test");
    Arguments given;
    if (at_sign("(")) {
      given = arguments();
    } else if (const Kind kind = token().kind; kind == Kind::string || kind == Kind::number || at_sign("[") ||
                                               at_sign("{") ||
                                               (kind == Kind::name && !at_name({"else", "or", "and"}))) {
      given.positional.push_back(postfix(primary()));
    }
    return [test = applied(tests, "test", which, std::move(given), line), negated](Rendering& rendering,
                                                                                   Value value) -> Value {
      return is_true(test(rendering, std::move(value))) != negated;
    };
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;  // around the statement
};

}  // namespace

JinjaTemplate::JinjaTemplate(std::string_view source) {
  std::string text;  // with the ends of lines, and without the last one, as Jinja reads it
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') text += source[i];
    if (source[i] == '\r' && !source.substr(i + 1).starts_with('\n')) text += '\n';
  }
  if (text.ends_with('\n')) text.pop_back();
  statements_ = Parser(Lexer(text).tokens()).whole();
}

std::string JinjaTemplate::render(const Value& variables, const std::tm& now) const {
  Rendering rendering{.now = now, .scopes = {{}}, .macros = {}, .out = {}};
  for (const auto& [name, value] : variables.items()) rendering.set(name, value, 1);
  rendering.run(statements_);
  return std::move(rendering.out);
}

}  // namespace llama
