"""Writes tests/reference/fixtures/chat/jinja.json: what transformers renders of Jinja templates, one for each thing
that examples/llama/tokenizer/jinja.cpp knows, and of templates put together by chance."""

import datetime
import json
import pathlib
import random
import re
import warnings
from unittest import mock

from transformers.utils import chat_template_utils

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
VARIABLES = {
    "messages": [{"role": "user", "content": " Hello a\n"}, {"role": "assistant", "content": "caf\u00e9 b"},
                 {"role": "user", "content": "last"}],
    "bos_token": "<s>", "tools": None, "yes": True, "n": 7, "list": [3, 1, 2], "map": {"z": 1, "a": "two"},
    "text": "a,b,c", "none_there": None,
}

# Filters, tests, functions and methods.
PARTS = """
text | upper;text | lower;'hELLO w' | capitalize;messages[0].content | trim;n | trim;missing | trim;text | length
list | length;messages[1].content | length;map | count;list | first;list | last;[] | first;text | last
text | list | join('-');list | join;list | join(', ');map | list | join;text | replace(',', '; ');n | string ~ n
missing | default('d');none_there | d('d');missing | default;'' | default('e', true);'' | default('e', boolean=true)
missing | d(default_value='k');messages | selectattr('role', 'equalto', 'user') | list | length
(messages | rejectattr('role', 'eq', 'user') | first).content;messages | selectattr('role') | list | length
messages | selectattr('name', 'defined') | list | length;map | items | list | length;yes is defined;missing is defined
missing is not defined;missing is undefined;none_there is none;text is string;map is mapping;list is mapping
list is iterable;n is iterable;text is sequence;n is number;yes is number;n is integer;yes is integer;yes is boolean
yes is true;yes is false;n is odd;n is even;n is eq 7;n is equalto(8);n is ne 7
messages | selectattr('role', '==', 'user') | list | length;2 is in list;text is not none;raise_exception is defined
'x' if strftime_now is defined;strftime_now('%d %b %Y');range(3) | join;range(1, 4) | join;range(1, 10, 4) | join
range(0) | length;messages[0].content.strip();messages[0].content.lstrip();messages[0].content.rstrip() ~ '|'
text.strip('ac');'xxy'.lstrip('x');'yxx'.rstrip('x');text.split(',') | join('|');text.split(',', 1) | last
text.split(',')[-1];text.upper();'AB'.lower();'ab cD'.capitalize();text.replace('a', 'x');text.startswith('a')
text.endswith('x');map.get('z');map.get('q');map.get('q', 5);map.items() | list | length
"""
# Operators, literals and members.
EXPRESSIONS = r"""
n + 3 * 2 - 1;(n + 3) * 2;n // 2;-n // 2;n % 4;-n % 4;-n;'a' + 'b' ~ n ~ true ~ none;'a' 'b';([1] + [2]) | length
n == 7;n != 7;n < 8;n > 8;n <= 7;n >= 8;1 < n < 9;1 < 9 < n;'a' < 'b';'a' in text;'q' not in text;'z' in map;3 in list
true == 1;none == false;missing == missing;missing == '';'1' == 1;[1, 2] == [1, 2];{'a': 1} == {'a': 1};yes and n
none_there or 'o';not yes;not '' and n;'' or missing or 'x';'t' if yes else 'f';'t' if not yes
'a' if none_there else 'b' if yes else 'c';n is odd and n is not even;yes if n is defined else 3;list[0];list[-1]
list[9];list[1:] | join;list[:-1] | join;list[::-1] | join;'caf\u00e9'[::-1];'hello'[1:3];'hello'[-2:];'hello'[:-9]
'hello'[9:];'hello'[-1];'hello'[3:0:-1];map['a'];map.a;map.q;map['q'];messages[0]['role'];messages[-1].content
(1, 2)[1];[1, [2, 3]][1][0];{'k': 'v'}['k'];{'k': 'v'}.k;n.x;text.x;'\n|\t|\\|\'|\"|\x41|\u00e9|\U0001F410|\q|\\n'
"it's";'say "x"';True;False;None;missing;+n;'a' if none_there;'\x1c a\x1f' | trim | length;text['k'] is defined
list['k'] is defined;[true] == [1];{'a': 1, 'b': 2} == {'b': 2, 'a': true};[1, [2]] == [1, [3]];{'a': 1} == {'b': 1}
messages | selectattr('role', 'equalto', 'user') | first | length;'a' if yes if n;0 or '' or 7 and n
"""
STATEMENTS = [
    "{% if n == 1 %}a{% elif n == 7 %}b{% else %}c{% endif %}{% if missing %}a{% else %}d{% endif %}{% if none_there %}x{% endif %}",
    "{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}"
    "{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% for x in list if x > 1 %}{{ x }}/{{ loop.length }} {% endfor %}{% for x in [] %}a{% else %}none{% endfor %}",
    "{% for k, v in map.items() %}{{ k }}={{ v }},{% endfor %}{% for k in map %}{{ k }}{% endfor %}{% for c in 'ab' %}{{ c }}.{% endfor %}",
    "{% for x in list %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}{% for x in list %}{% if x == 1 %}{% break %}"
    "{% endif %}{{ x }}{% endfor %}",
    "{% for x in list %}{% continue %}{% else %}no turn was whole{% endfor %}{% for x in list %}{% break %}{% else %}nor here{% endfor %}",
    "{% for x in missing %}a{% endfor %}{% for a in list %}{% for b in list %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% set x = 1 %}{% for y in list %}{% set x = y %}{{ x }}{% endfor %}{{ x }}{% if yes %}{% set x = 9 %}{% endif %}{{ x }}",
    "{% set ns = namespace(found=false, k='a') %}{% for y in list %}{% if y == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}"
    "{{ ns.found }}{{ ns.k }}{{ ns['k'] }}{{ ns.q }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %}in {{ n }}{% set d = 3 %}{% endset %}{{ c }}{{ d }}",
    "{% macro m(a, b='B') %}<{{ a }}|{{ b }}|{{ n }}>{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m() }}"
    "{% for n in list %}{{ m(n) }}{% endfor %}{{ m(m('x')) | upper }}{% set t = m(0) %}{{ t | length }}",
    "{% macro down(k) %}{{ k }}{% if k > 0 %}{{ down(k - 1) }}{% endif %}{% endmacro %}{{ down(5) }}",
    "{% set ns = namespace(a=1) %}{% macro m() %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{% endmacro %}"
    "{{ m() }}{% for x in list %}{{ m() }}{% endfor %}{{ ns.a }}",
    "{% set x = 1 %}{% macro m(k=x, j=k) %}{{ x }}{{ k }}{{ j }}{{ y }}{% set x = 7 %}{{ x }}{% endmacro %}{% set x = 2 %}"
    "{% if yes %}{% set y = 3 %}{% endif %}{{ m() }}{{ x }}{% for x in list %}{{ m() }}{{ x }}{% endfor %}",
    "{{ 7 % 9223372036854775807 }} {{ range(9223372036854775805, 9223372036854775807, 1000000) | join }} "
    "{{ range(1, 2, 9223372036854775807) | join }} {{ range(0, 7, 3) | join }} {{ range(5, 2) | join }}",
    "{% generation %}{{ n }}{% endgeneration %}{# {{ n }} {% if %} #}x{#- c -#} y",
    "{% if false %}{{ x | tojson(indent=4) }}{{ f(x) }}{{ x.pop() }}{{ x is divisibleby 3 }}{{ 1 / 2 }}{{ 2 ** 3 }}{% endif %}z",
    "a\n  {% if yes %}\n    b\n  {% endif %}\nc\n {{ n }}\n d\n",
    "a\n  {%- if yes -%}\n    b\n  {%- endif %}\nc \n {{- n -}}\n d\n\n",
    "a\n  {%+ if yes +%}\n    b\n\t{% endif %} \nc {# x #}\n  {#- y #}\n\n   {# z +#}\nd",
    "  {% if yes %}  x  {% endif %}  {% if yes %}\n{% endif %}\r\n y\r z {{ '}}' }}{{ {'a': {'b': 1}}.a.b }} { % {x} #} %}",
    "\u3000{%- if yes -%}\u3000x\u00a0{%- endif %}",
    "{% for q in [] %}{% else %}{% set y = 1 %}{{ y }}{% endfor %}{{ y }}{% for m in messages | selectattr('role', 'eq', 'user') %}"
    "{{ m.content }}{% endfor %}{% for k, v in map | items %}{{ k }}{{ v }}{% endfor %}{{ 'a\\\nb' }}",
    "{% set ns = namespace(log='') %}{% macro a() %}{% set ns.log = ns.log ~ 'a' %}a{% endmacro %}{% macro b() %}"
    "{% set ns.log = ns.log ~ 'b' %}b{% endmacro %}{{ a() | replace('x', b()) }}{{ a().replace('x', b()) }}{{ ns.log }}",
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message.content | trim + '</s>' }}{% endfor %}",
]
# Jinja refuses them.
WRONG = [
    "{% break %}a", "{% macro m() %}{% break %}{% endmacro %}{{ m() }}rest", "{% set x = namespace(a=1).a %}{% set x.b = 2 %}",
    "{% for x in list %}{% else %}{% break %}{% endfor %}", "{% for x in n %}{% endfor %}", "{{ missing.x }}", "{{ missing[0] }}", "{{ 'a' + n }}", "{{ 'a' < n }}", "{{ n in 'abc' }}",
    "{{ text.nope() }}", "{{ nope() }}", "{{ n() }}", "{% if n %}", "{{ n", "{{ 'a }}", "{{ (n] }}", "{% endif %}", "{{ n n }}",
    "{{ text | nope }}", "{{ text is nope }}", "{{ list[1 2] }}", "{% set map.k = 1 %}", "{{ raise_exception('no') }}",
    "{{ 7 % 0 }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{{ messages | selectattr('role') | length }}",
]
LITERALS = ["'a'", "'b c'", "''", "1", "0", "7", "true", "none", "'  pad '", "'it'"]
NAMES = ["messages[0].content", "messages[0]['role']", "text", "n", "x", "y", "missing", "loop.index0", "loop.last", "bos_token"]
FILTERS = ["trim", "upper", "length", "first", "last", "string", "default('d')", "replace('a', 'b')", "list | length"]
TESTS = ["defined", "not none", "string", "number", "odd", "eq 'a'", "in ['a', 1]", "true"]
METHODS = ["strip()", "upper()", "split(' ')[0]", "startswith('a')", "replace('a', 'zz')", "lstrip('\\n')"]


def expression(chance, depth):
    if depth == 0 or chance.random() < 0.2:
        return chance.choice(LITERALS + NAMES)
    a, b, c = (expression(chance, depth - 1) for _ in range(3))
    return chance.choice([
        f"{a} {chance.choice(['+', '-', '~', '~'])} {b}", f"{a} {chance.choice(['==', '!=', '<', 'in', 'not in'])} {b}",
        f"{a} {chance.choice(['and', 'or'])} {b}", f"not {a}", f"({a})", f"{a} | {chance.choice(FILTERS)}",
        f"{a} is {chance.choice(TESTS)}", f"({a}).{chance.choice(METHODS)}", f"{a} if ({b}) else {c}", f"m({a})", f"({a})[1:]"])


def statement(chance, depth):
    space = ["", "", "\n", "  ", "\n  ", " \n\n "]

    def tag(text):
        return f"{chance.choice(space)}{{%{chance.choice('  -+')} {text} {chance.choice('  -+')}%}}{chance.choice(space)}"

    def body():
        return "".join(statement(chance, depth - 1) for _ in range(chance.randrange(3)))

    kind = chance.randrange(8) if depth else 0
    if kind < 3:
        return f"{chance.choice(space)}{{{{{chance.choice(' -')} {expression(chance, 2)} {chance.choice(' -')}}}}}{chance.choice(space)}"
    if kind == 3:
        return tag("if (" + expression(chance, 2) + ")") + body() + tag("else") + body() + tag("endif")
    if kind == 4:
        flow = chance.choice(["", "", "{% break %}", "{% if loop.first %}{% continue %}{% endif %}"])
        return tag(f"for x in {chance.choice(['text', '[1, 2]', 'range(3)'])}") + body() + flow + body() + tag("endfor")
    if kind == 5:
        return tag(f"set {chance.choice('xy')} = {expression(chance, 2)}")
    return chance.choice(["text", "  two\n", "\u00e9{#- c #}\n", "{ {"]) + chance.choice(space)


def by_chance(render, count):
    chance = random.Random(4)
    while count:
        template = ("{% macro m(a, b='B') %}<{{ a }}|{{ b }}>{% endmacro %}"
                    + "".join(statement(chance, 3) for _ in range(chance.randrange(2, 5))))
        text = render(template)
        if text is None:
            continue
        if len(text) < 300 and "{'" not in text:  # mappings are not written out
            count -= 1
            yield template


def main():
    clock = mock.Mock(now=lambda: datetime.datetime(2026, 8, 5))

    def render(template):
        """The text; None where Jinja refuses the template."""
        try:
            return rendered(template)
        except Exception:
            return None

    def rendered(template):
        return chat_template_utils._compile_jinja_template(template).render(**VARIABLES)

    warnings.simplefilter("ignore", SyntaxWarning)  # Python's, of templates by chance
    with mock.patch.object(chat_template_utils, "datetime", clock):
        expressions = [part for line in (PARTS + EXPRESSIONS).split("\n") for part in re.split(";(?! )", line) if part]
        templates = [f"{{{{ {part} }}}}" for part in expressions] + STATEMENTS
        for template in templates:
            rendered(template)
        templates += WRONG
        for template in WRONG:
            if render(template) is not None:
                raise SystemExit(f"Jinja renders {template}")
        templates += by_chance(render, 200)
        cases = [{"template": template, "text": render(template)} for template in templates]
    text = json.dumps({"variables": VARIABLES, "cases": cases}, indent=0)
    (FIXTURES / "chat" / "jinja.json").write_text(text + "\n")


main()
