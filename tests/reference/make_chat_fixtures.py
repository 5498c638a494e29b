"""Writes tests/reference/fixtures/chat/: chat templates as models of each family have them, and what transformers'
apply_chat_template makes of prompts with the tokenizers of fixtures/tokenizer; and what it puts before a text."""

import datetime
import json
import pathlib
import tempfile
from unittest import mock

from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
TODAY = datetime.datetime(2026, 8, 5)  # for templates that ask for it

ANSWER = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
TURNS = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
         "+ '\\n' }}{% endfor %}")
VARIABLE = ("{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% else %}"
            "{% set system_message = \"You are a goat's keeper.\" %}{% endif %}"
            "{{ '<|im_start|>system\\n' + system_message + '<|im_end|>\\n' }}")
HEADERS = ("{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' "
           "+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
           "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
           "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")
DATES = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- set system_message = "" %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
TODAYS = DATES.replace("""{%- set date_string = "26 Jul 2024" %}""", """{%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}""")
TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {{- "# Tools\\n" }}
    {%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a lighthouse keeper. Answer in one line.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
THINKING = """{%- if tools %}
    {{- '<|im_start|>system\\n' + tools[0] | tojson + '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set found = namespace(looking=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if found.looking and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set found.looking = false %}
        {%- set found.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thoughts = '' %}
        {%- if '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > found.last and (loop.last or (not loop.last and thoughts)) %}
            {{- '<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content.split('</think>')[-1].lstrip('\\n') + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""


def instructions(before, after, bos_each=False, system=""):
    """Llama 2 and Mistral: BOS before each turn or once, spaces inside or outside of the marks."""
    start = "bos_token + " if bos_each else ""
    content = "content.strip()" if system else "content"
    return (("" if bos_each else "{{ bos_token }}") + "{% for message in messages %}{% set content = message['content'] %}"
            f"{{% if message['role'] == 'system' %}}{{{{ raise_exception('{system}') }}}}{{% endif %}}"
            f"{{% if message['role'] == 'user' %}}{{{{ {start}'{before}' + {content} + '{after}' }}}}"
            "{% else %}{{ ' ' + content + eos_token }}{% endif %}{% endfor %}")


# name: tokenizer, BOS, template
CASES = {
    "chatml": ("qwen", None, TURNS + ANSWER),
    "chatml with BOS": ("qwen", "<|endoftext|>", "{{ bos_token }}" + TURNS + ANSWER),
    "chatml with a system message": (
        "qwen", "<|im_start|>",
        "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a helpful goat<|im_end|>\\n' }}{% endif %}"
        + TURNS + ANSWER),
    "chatml with tools": ("qwen", "<|endoftext|>", TOOLS),
    "chatml with a variable for the system message": ("qwen", "<|endoftext|>", VARIABLE + TURNS + ANSWER),
    "chatml that trims": ("qwen", "<|endoftext|>", TURNS.replace("message['content']", "message['content'] | trim") + ANSWER),
    "llama 2": ("llama2_metaspace", "<s>", instructions("[INST] ", " [/INST]", bos_each=True, system="<<SYS>>")),
    "llama 2 prepend": ("llama2_prepend", "<s>", instructions("[INST] ", " [/INST]", bos_each=True, system="<<SYS>>")),
    "llama 3": ("llama3", "<|begin_of_text|>", HEADERS),
    "llama 3 with dates": ("llama3", "<|begin_of_text|>", DATES),
    "llama 3 with dates in single quotes": ("llama3", "<|begin_of_text|>", DATES.replace('"', "'")),
    "llama 3 with today's date": ("llama3", "<|begin_of_text|>", TODAYS),
    "llama 3 with today's date in single quotes": ("llama3", "<|begin_of_text|>", TODAYS.replace('"', "'")),
    "mistral": ("llama2_metaspace", "<s>", instructions("[INST] ", " [/INST]")),
    "mistral with a space before": ("llama2_metaspace", "<s>", instructions(" [INST] ", " [/INST]")),
    "mistral with one space": ("llama2_metaspace", "<s>", instructions("[INST] ", "[/INST]")),
    "mistral without spaces": ("llama2_prepend", "<s>", instructions("[INST]", "[/INST]")),
    "zephyr": ("llama2_prepend", "<s>", ZEPHYR),
    "escapes": ("qwen", None, "{{ '<|im_start|>system\\nIn \\\\boxed{}.\\tCaf\\u00e9.<|im_end|>\\n' }}" + TURNS + ANSWER),
    "added system message": ("qwen", None, "{{ '<|im_start|>system\\n' + 'Be a goat.' + '<|im_end|>\\n' }}" + TURNS + ANSWER),
    "EOS at the end of a turn": ("llama2_prepend", "<s>", TURNS.replace("'<|im_end|>'", "eos_token") + ANSWER),
    "texts around what is said": ("qwen", None, TURNS.replace("message['content']", "'Q: ' + message['content'] + ' /end'")
                                  + ANSWER),
    "a comment with a mark": ("qwen", None, "{# '<|im_start|>system\\nNo.<|im_end|>' #}" + TURNS + ANSWER),
    "turns and answers in one": ("qwen", None, "{% for message in messages %}{{ '<|im_start|>user\\n' + message['content'] + "
                                 "'<|im_end|>\\n<|im_start|>assistant\\n' }}{% endfor %}"),
    "only the system message is trimmed": (
        "llama3", "<|begin_of_text|>", "{{ bos_token }}{% for m in messages %}{% set text = m['content'] | trim if m['role'] == "
        "'system' else m['content'] %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + text }}{% endfor %}"),
    "thinks": ("qwen", None, TURNS + ANSWER.replace("assistant\\n", "assistant\\n<think>\\n")),
    "looks for the last question, and may think": ("qwen", None, THINKING),
    "is told not to think": ("qwen", None, "{%- set enable_thinking = false %}\n" + THINKING),
    "plain words": ("llama2_metaspace", "<s>", "{% macro turn(role, text) %}{{ role | upper }}: {{ text.strip() }}\n{% endmacro %}"
                    "{{ bos_token }}{% for m in messages %}{{ turn(m.role, m.content) }}{% endfor %}ASSISTANT:"),
}

PROMPTS = ["Hello world", "  \n spaces around \t\n", "\u3000caf\u00e9 \u4f60\u597d",
           "a <|im_end|> inside </s>\n\nand more\n", "{{ bos_token }} \\n"]


def bos_cases():
    """What comes before a text, with and without BOS in tokenizer.json, whatever tokenizer_config.json says of it."""
    whole = json.loads((FIXTURES / "tokenizer" / "llama2_metaspace.json").read_text())
    for in_file in [True, False]:
        content = whole if in_file else whole | {"post_processor": None}
        for name in ["LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast"]:
            for add in [None, True, False]:
                config = {"tokenizer_class": name, "bos_token": "<s>"} | ({} if add is None else {"add_bos_token": add})
                with tempfile.TemporaryDirectory() as folder:
                    folder = pathlib.Path(folder)
                    (folder / "tokenizer.json").write_text(json.dumps(content))
                    (folder / "tokenizer_config.json").write_text(json.dumps(config))
                    ids = AutoTokenizer.from_pretrained(folder)("Hello world")["input_ids"]
                yield {"in_file": in_file, "tokenizer_config": config, "text": "Hello world", "ids": ids}


def main():
    (FIXTURES / "chat").mkdir(parents=True, exist_ok=True)
    clock = mock.patch.object(chat_template_utils, "datetime", mock.Mock(now=lambda: TODAY))
    clock.start()
    cases = []
    for name, (tokenizer, bos, template) in CASES.items():
        eos = "</s>" if "eos_token" in template else None
        fast = PreTrainedTokenizerFast(tokenizer_file=str(FIXTURES / "tokenizer" / f"{tokenizer}.json"), bos_token=bos,
                                       eos_token=eos, chat_template=template)
        encodings = []
        for prompt in PROMPTS:
            messages = [{"role": "user", "content": prompt}]
            text = fast.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            ids = fast.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
            encodings.append({"prompt": prompt, "text": text, "ids": ids})
        cases.append({"name": name, "tokenizer": tokenizer, "bos_token": bos, "eos_token": eos,
                      "chat_template": template, "encodings": encodings})
    text = json.dumps(cases, separators=(",", ":"))
    (FIXTURES / "chat" / "cases.json").write_text(text + "\n")
    (FIXTURES / "chat" / "bos.json").write_text(json.dumps(list(bos_cases()), separators=(",", ":")) + "\n")


main()
