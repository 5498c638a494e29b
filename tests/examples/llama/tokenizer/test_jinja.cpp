#include "examples/llama/tokenizer/jinja.hpp"

#include <doctest/doctest.h>

#include <string>

#include "examples/llama/tokenizer/tokenizer.hpp"
#include "support.hpp"
#include "tests/support/source_folder.hpp"

namespace llama::test {
namespace {

using Value = nlohmann::ordered_json;

std::string render(const std::string& source, const Value& variables = Value::object()) {
  return JinjaTemplate(source).render(variables, fifth_of_august_2026());
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST_CASE("jinja: a template renders as in transformers, or is refused where Jinja refuses it") {
  const Value file = Value::parse(
      read(lazyllm::test::source_folder() / "tests/reference/fixtures/chat/jinja.json"));  // make_jinja_fixtures.py
  REQUIRE(file["cases"].size() > 300);
  for (const Value& each : file["cases"]) {
    const auto source = each["template"].get<std::string>();
    CAPTURE(source);
    if (each["text"].is_null())
      CHECK_THROWS_AS(render(source, file["variables"]), tokenizer_error);
    else
      CHECK(render(source, file["variables"]) == each["text"].get<std::string>());
  }
}

TEST_CASE("jinja: what is not known, or no template, is refused with its line") {
  const Value variables{{"text", "a"}, {"list", {1, 2}}, {"map", {{"k", 1}}}, {"n", 3}, {"none_there", nullptr}};
  const std::vector<std::pair<std::string, std::string>> refused{
      {"\n\n{{ text | tojson }}", "line 3: filter \"tojson\" is not known; known are capitalize, count, d, default"},
      {"{{ text is divisibleby 3 }}", "test \"divisibleby\" is not known; known are =="},
      {"{{ f(text) }}", "function \"f\" is not known; known are namespace, raise_exception, range, strftime_now"},
      {"{{ text.title() }}", "method \"title\" is not known; known are capitalize, endswith"},
      {"{{ map.pop('k') }}", "method \"pop\" is not known; known are get, items"},
      {"{{ list.append(3) }}", "method \"append\" of a list is not known"},
      {"{{ text.strip }}", "the method \"strip\" is not called"},
      {"{{ n() }}", "function \"n\" is no function but a variable"},
      {"{{ text('a') | trim('b')('c') }}", "what is called has no name"},
      {"{{ list }}", "a list is written out"},
      {"{{ map }}", "a mapping is written out"},
      {"{{ raise_exception('No goats.') }}", "says: No goats."},
      {"{{ missing.x }}", "a member of an undefined value"},
      {"{{ missing + 'a' }}", "an undefined value + a text is not known"},
      {"{{ none_there + 'a' }}", "none + a text is not known"},
      {"{{ 'a' + n }}", "a text + a number is not known"},
      {"{{ n / 2 }}", "3 / 2 is not known"},
      {"{{ n ** 2 }}", "3 ** 2 is not known"},
      {"{{ n % 0 }}", "3 % 0 is not known"},
      {"{{ 9223372036854775807 + n }}", "9223372036854775807 + 3 is not known"},
      {"{{ 'a' < n }}", "a text < a number is not known"},
      {"{{ n in 'abc' }}", "\"in\" is a number, expected a text"},
      {"{{ list[none] }}", "an index is none, expected a whole number"},
      {"{{ map.values is defined }}", "the method \"values\" is not called"},
      {"{{ map['pop'] }}{{ list.sort }}", "the method \"pop\" is not called"},
      {"{{ text['title'] }}", "the method \"title\" is not called"},
      {"{{ strftime_now('%H:%M %z') }}", "of the format \"%H:%M %z\" is not known"},
      {"{{ strftime_now('%-d') }}{{ strftime_now('%-z') }}", "of the format \"%-z\" is not known"},
      {"{{ strftime_now('%%-') }}{{ strftime_now('%-') }}", "of the format \"%-\" is not known"},
      {"{{ strftime_now('%f') }}{{ strftime_now('%') }}", "of the format \"%f\" is not known"},
      {"{{ strftime_now('" + repeated("x", 1100) + "') }}", "of a format that is too long"},
      {"{{ [map] | selectattr('k.x') | list }}", "by \"k.x\" is not known"},
      {"{% if list | selectattr('k') %}{% endif %}", "what the filter \"selectattr\" gives is known in a loop"},
      {"{% set s = [map] | rejectattr('k') %}", "what the filter \"rejectattr\" gives is known in a loop"},
      {"{{ map | items | length }}", "what the filter \"items\" gives is known in a loop"},
      {"{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(b=2) }}", "arguments of any number is not known"},
      {"{{ 0.5 }}", "the number 0.5 is not known"},
      {"{{ +text }}", "a number + a text is not known"},
      {"{% break %}a", "\"break\" is known in a loop's own statements alone"},
      {"{% for a in list %}{% macro m() %}{% continue %}{% endmacro %}{% endfor %}",
       "\"continue\" is known in a loop's own statements alone"},
      {"{% for a in list %}{% set x %}{% break %}{% endset %}{% endfor %}",
       "\"break\" is known in a loop's own statements alone"},
      {"{% for a in list %}{% else %}{% break %}{% endfor %}", "\"break\" is known in a loop's own statements alone"},
      {"{% set x = namespace(a=1).a %}{% set x.b = 2 %}", "\"x\" is no namespace"},
      {"{% set x = namespace(a={}).a %}{% set x.b = 2 %}", "\"x\" is no namespace"},
      {"{{ list[::2] }}", "a slice of step 2 is not known"},
      {"{{ missing[1:] }}", "a member of an undefined value"},
      {"{{ '\u00e9' | upper }}", "of letters other than ASCII is not known"},
      {"{{ text.split() }}", "method \"split\" has arguments that are not known"},
      {"{{ text.split('') }}", "at an empty text is not known"},
      {"{{ text | trim(x=1) }}", "has arguments that are not known"},
      {"{{ range(1000001) }}", "of so many numbers"},
      {"{{ range(-9223372036854775807, 9223372036854775807) }}", "of so many numbers"},
      {"{% for a, b in list %}{% endfor %}", "2 names are set to a number"},
      {"{% for a in n %}{% endfor %}", "a loop runs through a number"},
      {"{% set ns = namespace(a=1) %}{{ ns }}", "the namespace \"ns\" as a value"},
      {"{% set map.k = 1 %}", "\"map\" is no namespace"},
      {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "has arguments that are not known"},
      {"{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "has arguments that are not known"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "is called too deeply"},
      {"{% for a in list %}{% macro m() %}{% endmacro %}{% endfor %}", "a macro inside of a loop"},
      {"{% include 'a' %}", "the statement \"include\" is not known; known are break"},
      {"{% if n %}", "{% endif %} is missing"},
      {"{% for a in list %}{% else %}", "{% endfor %} is missing"},
      {"{% endif %}", "the statement \"endif\" is not known"},
      {"{{ n\n\n", "line 1: a tag does not end with }}"},
      {"{{ \u201ca\u201d }}", "\"\u201c\" is not known in a tag"},
      {"{% if n", "a tag does not end with %}"},
      {"{# a", "a comment does not end"},
      {"{{ 'a }}", "a text in quotes does not end"},
      {"{{ (n] }}", "\"]\" stands where \")\" is expected"},
      {"{{ (n }}", "\"}\" closes nothing"},
      {"{{ n) }}", "\")\" closes nothing"},
      {"{{ n ? }}", "\"?\" is not known in a tag"},
      {"{{ n n }}", "\"n\" stands where \"}}\" is expected"},
      {"{{ * }}", "\"*\" stands where a value is expected"},
      {"{{ list[] }}", "\"]\" stands where an index is expected"},
      {"{{ list[1 2] }}", "\"2\" stands where \"]\" is expected"},
      {"{{ 99999999999999999999 }}", "the number 99999999999999999999 is not known"},
      {"{{ '\\ud800' }}", "stands for no character"},
      {"{{ '\\xg0' }}", "stands for no character"},
      {"{{ '\\N{DASH}' }}", "the escape \\N is not known"},
      {"{{ '\\12' }}", "the escape \\1 is not known"},
      {"{{ n is none is none }}", "\"is\" stands where an argument of a test is expected"},
      {repeated("{% if n %}", 200), "nests more than 100 levels"},
      {"{{ " + repeated("(", 100000) + "n" + repeated(")", 100000) + " }}", "nests more than 100 levels"},
      {"{{ " + repeated("not ", 100000) + "n }}", "nests more than 100 levels"},
      {"{{ " + repeated("-", 100000) + "n }}", "nests more than 100 levels"},
      {"{{ n" + repeated("[0", 100000) + repeated("]", 100000) + " }}", "nests more than 100 levels"},
      {"{% for a in range(2000) %}{% for b in range(2000) %}{% endfor %}{% endfor %}", "takes more than 1000000 steps"},
      {"{% for a in range(9) %}{{ range(300000) | length }}{% endfor %}", "takes more than 1000000 steps"},
      {"{% set ns = namespace(a=[1]) %}{% for i in range(40) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
       "takes more than 1000000 steps"},
      {"{% macro m() %}" + repeated("{% for a in list %}", 90) + "{{ m() }}" + repeated("{% endfor %}", 90) +
           "{% endmacro %}{{ m() }}",
       "is called too deeply"},
      {"{% set ns = namespace(a=1) %}{% for i in range(250) %}{% set ns.a = " + repeated("[", 20) + "ns.a" +
           repeated("]", 20) + " %}{% endfor %}",
       "a value nests more than 100 levels"},
      {"{% set ns = namespace(a=1) %}{% for i in range(250) %}{% set a = " + repeated("{'a': ", 20) + "a" +
           repeated("}", 20) + " %}{% endfor %}{% for a in [" + repeated("[", 60) + repeated("]", 60) +
           "] %}{% set b = " + repeated("[", 60) + "a" + repeated("]", 60) + " %}{% endfor %}",
       "a value nests more than 100 levels"},
      {"{% set ns = namespace(a='aaaaaaaa') %}{% for i in range(30) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
       "a text has more than 256 MiB"}};
  for (const auto& each : refused) {
    const auto& source = each.first;
    const std::string& reason = each.second;
    CAPTURE(source.substr(0, 200));
    std::string said;  // once: some of them take long
    try {
      render(source, variables);
    } catch (const tokenizer_error& error) {
      said = error.what();
    }
    CHECK(said.starts_with("the chat_template, line "));
    CHECK(said.find(reason) != std::string::npos);
  }
}

TEST_CASE("jinja: what is not known does not matter where it is not reached") {
  CHECK(render("{% if tools %}{{ tools | tojson }}{{ f(tools) }}{% endif %}a{{ tools.x() if tools }}") == "a");
}

TEST_CASE("jinja: long chains of operators are no nesting") {
  CHECK(render("{{ 1" + repeated(" + 1", 20000) + " }}") == "20001");
  CHECK(render("{{ 'a'" + repeated(" | trim", 20000) + " }}") == "a");
  CHECK(render("{{ 'a'" + repeated("[0]", 20000) + repeated(".strip()", 20000) + " }}") == "a");
  CHECK(render("{{ 0" + repeated(" or 0", 20000) + repeated(" and 1", 20000) + " }}") == "0");
  CHECK(render("{{ 'a'" + repeated(" if 1", 20000) + " }}") == "a");
}

}  // namespace
}  // namespace llama::test
