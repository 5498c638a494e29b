"""Writes tests/reference/fixtures/tokenizer/: tiny tokenizer.json files and the ids that Python's tokenizers and
sentencepiece give for nasty texts. variants.json has changes of these files (JSON merge patches), and their ids. Usage: make_tokenizer_fixtures.py [LLAMA2_TOKENIZER_MODEL]"""

import json
import pathlib
import random
import sys

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).parent / "fixtures" / "tokenizer"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

TEXTS = [
    "",
    " ",
    "a",
    "Hello world",
    " leading and trailing ",
    "  two   three    four     runs",
    "tabs\tand\t\ttabs \t mixed",
    "line\nbreaks\n\nand\r\nwindows\r\n\r\n  indented",
    "ends with spaces   ",
    "ends with newline \n",
    " \n \n  \n",
    "vertical\vtab form\ffeed next\u0085line no\u00a0break\u2003em\u2028sep\u3000ideographic",
    " \v \u0085 \u00a0 x",
    "It's we're I'm they'll I'd you've don't can't",
    "IT'S WE'RE I'M THEY'LL I'D YOU'VE DON'T",
    "it'\u017f odd, 'sword 'tis ''s '' '",
    "1 12 123 1234 12345 1234567890 3.14159 1,000,000 0x1F 1e-9",
    "\u0661\u0662\u0663\u0664 \u00bd\u00b2 \u2163 \u4e00\u4e8c\u4e09 \u0967\u0968\u0969\u096a",
    "def f(x, y=2):\n    return [x**y for _ in range(10)]  # comment\n",
    "int main() { std::vector<int> v{1,2,3}; return v[0] != 0 ? -1 : 0; }\n\t// end",
    "if(a&&b||!c){x->y();}/*...*/#define A_B(c) \\\n  c",
    '{"key": [1, 2.5, null, true], "nested": {"a": "b\\n"}}',
    "<html><body class='x'>&amp;</body></html>",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u8fd9\u662f\u4e00\u4e2a\u6d4b\u8bd5\u3002",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c \uc548\ub155\ud558\uc138\uc694 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "caf\u00e9 cafe\u0301 nai\u0308ve n\u0303 ph\u1edf pho\u031b\u0309 o\u0302\u0323 a\u0323\u0302 \u212b \u2126 \ufb01 \u1e9b\u0323",
    "\u0301starts with an accent e\u0301\u0301\u0301\u0301",
    "zero\u200bwidth\ufeffbom \ue000private \U0010ffff last \ufffd replaced",
    "math \u2200x\u2208\u211d: \u2211\u1d62 x\u1d62\u00b2 \u2264 \u221e \U0001d54f \u00b1\u00d7\u00f7",
    "\x00nul \x01\x02\x1b[0m\x7f controls",
    "!!!???...---===___***~~~```\"\"\"",
    "$100 \u20ac50 \u00a320 50% #tag @user a/b\\c http://x.org/?q=1&r=2",
    "special <|endoftext|> inside<|im_start|>user\nhi<|im_end|>\n</s> <unk> <|begin_of_text|>",
    "<s>starts with BOS</s> again",
    "<|endoftext|><|endoftext|> <|endoftext",
    "<|im_start|>",
    "<|end<|endoftext|>|> <tool><tool_call>x</tool_call>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "the" * 20 + " " + "ab" * 21,
    "once upon a time the little dog said that the house was big",
    "\u2581already marked\u2581 \u2581\u2581",
    "<0x41> literal byte token",
]


def training_text():
    """Words from a small invented language, with numbers, code, accents and other scripts in between."""
    draw = random.Random(7)
    syllables = ["the", "re", "an", "ing", "ou", "st", "ll", "ti", "on", "es", "he", "wor", "ld", "do", "us", "be"]
    extras = ["don't", "it's", "we're", "they'll", "123", "2024", "return", "def f(x):\n    ", "caf\u00e9", "na\u00efve",
              "\u4f60\u597d", "\u4e16\u754c", "\u0645\u0631\u062d\u0628\u0627", "\u041f\u0440\u0438\u0432\u0435\u0442", "\U0001f600", "...", "!=", "\n\n", "    ", "\t"]
    for _ in range(400):
        words = ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(12)]
        for _ in range(4):
            words.insert(draw.randrange(len(words)), draw.choice(extras))
        yield " ".join(words)


def with_words(tokenizer, words):
    """Adds whole words that no merge produces: only ignore_merges finds them."""
    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    for word in words:
        vocabulary[word] = len(vocabulary)
    return Tokenizer.from_str(json.dumps(content))


def byte_level(pattern, normalizer=None, special=(), plain=(), unmerged_words=(), bos=None):
    tokenizer = Tokenizer(models.BPE(ignore_merges=bool(unmerged_words)))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(training_text(), trainer)
    tokenizer = with_words(tokenizer, unmerged_words)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=True) for text in plain])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if bos:
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]),
        ])
    return tokenizer


def llama2_style(metaspace):
    """Characters with byte fallback, in the two ways in which such files mark spaces."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    mark = "\u2581"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(mark, prepend_scheme="first", split=False)
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special + [f"<0x{i:02X}>" for i in range(256)],
                                  show_progress=False)
    tokenizer.train_from_iterator((line[:60] for line in training_text()), trainer)
    if not metaspace:
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(mark), normalizers.Replace(" ", mark)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(mark, " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def merged(content, patch):
    """A JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(content) if isinstance(content, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def variants():
    """Name, file and patch of each; every kind of normalizer, pre-tokenizer and flag that the host knows is here."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    words = dict(byte_level, use_regex=True)
    letters = {"Regex": r"[aeiou]+|\s|\p{P}"}
    for name, parts in {
        "digits": [{"type": "Digits", "individual_digits": True}, words],
        "digits together": [{"type": "Digits", "individual_digits": False}, words],
        "digits of bytes": [byte_level, {"type": "Digits", "individual_digits": True}],
        "prefix space": [dict(words, add_prefix_space=True)],
        "punctuation": [{"type": "Punctuation"}, byte_level],
        "punctuation together": [{"type": "Punctuation", "behavior": "Contiguous"}, words],
        "whitespace": [{"type": "Whitespace"}, byte_level],
        "whitespace split": [{"type": "WhitespaceSplit"}, byte_level],
        "delimiter": [{"type": "CharDelimiterSplit", "delimiter": "e"}, byte_level],
        "three patterns": [
            {"type": "Split", "pattern": {"Regex": "[\\r\\n]"}, "behavior": "Isolated", "invert": False},
            {"type": "Split", "pattern": {"Regex": "\\s?\\p{L}+"}, "behavior": "Isolated", "invert": False},
            {"type": "Split", "pattern": {"String": ".("}, "behavior": "MergedWithPrevious", "invert": False}, byte_level],
        **{f"split {behavior}{' inverted' if invert else ''}": [
            {"type": "Split", "pattern": letters, "behavior": behavior, "invert": invert}, byte_level]
           for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
           for invert in [False, True]},
    }.items():
        yield name, "gpt2", {"pre_tokenizer": sequence(*parts)}
    for name, parts in {
        "NFC": [{"type": "NFC"}], "NFD": [{"type": "NFD"}], "NFKC": [{"type": "NFKC"}], "NFKD": [{"type": "NFKD"}],
        "lowercase": [{"type": "Lowercase"}],
        "strip": [{"type": "Strip", "strip_left": True, "strip_right": True}],
        "strip left": [{"type": "Strip", "strip_left": True, "strip_right": False}],
        "strip right": [{"type": "Strip", "strip_left": False, "strip_right": True}],
        "accents": [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}],
        "replace": [{"type": "Replace", "pattern": {"Regex": "[aeiou]+(?=l)"}, "content": "he"},
                    {"type": "Replace", "pattern": {"String": "or"}, "content": ""}],
    }.items():
        yield name, "gpt2", {"normalizer": {"type": "Sequence", "normalizers": parts}}
    mark = {"type": "Metaspace", "replacement": "\u2581"}
    for scheme in ["always", "first", "never"]:
        for split in [False, True]:
            yield (f"metaspace {scheme}{' split' if split else ''}", "llama2_metaspace",
                   {"pre_tokenizer": dict(mark, prepend_scheme=scheme, split=split)})
    yield "unknown", "llama2_metaspace", {"model": {"byte_fallback": False, "fuse_unk": False}}
    yield "unknown fused", "llama2_metaspace", {"model": {"byte_fallback": False, "fuse_unk": True}}
    missing = {character: None for character in map(chr, [*range(0x100, 0x109), 0xCC, 0xE2])}  # no merge has them
    yield "missing bytes", "gpt2", {"added_tokens": [], "model": {"vocab": missing, "unk_token": "!"}}
    vocabulary = json.loads((FOLDER / "qwen.json").read_text(encoding="utf-8"))["model"]["vocab"]
    contents = ["he", "the", " on", "\u4e16", "<|endoftext|>", "s", "it's", "ph\u1edf"]
    ids, new = [], len(vocabulary)
    for content in contents:
        ids.append(vocabulary.get(content, new))
        new += content not in vocabulary
    for flags in [{}, {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True},
                  {"single_word": True, "lstrip": True, "normalized": True}]:
        yield f"added {' '.join(flags) or 'plain'}", "qwen", {"added_tokens": [
            {"id": index, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": False, **flags} for index, content in zip(ids, contents)]}


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    tokenizers = {
        "gpt2": byte_level(None, special=["<|endoftext|>"], plain=["<tool", "<tool>"]),
        "llama3": byte_level(LLAMA3, special=["<|begin_of_text|>", "<|endoftext|>"], bos="<|begin_of_text|>",
                             unmerged_words=["\u0120little", "\u0120house", "\u00e4\u00b8\u0122\u00e4\u00ba\u012e"]),
        "qwen": byte_level(QWEN, normalizers.NFC(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                           ["ph\u1edf", "<tool_call>", "</tool_call>"]),
        "llama2_metaspace": llama2_style(True),
        "llama2_prepend": llama2_style(False),
    }
    cases = {"texts": TEXTS, "encodings": {}}
    for name, tokenizer in tokenizers.items():
        content = json.loads(tokenizer.to_str())
        if name == "gpt2":  # the older spelling of merges
            content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        tokenizer = Tokenizer.from_str(text)
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        cases["encodings"][name] = [
            {"ids": tokenizer.encode(text).ids,
             "decoded": tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=True)} for text in TEXTS]
    changed = []
    for name, base, patch in variants():
        content = merged(json.loads((FOLDER / f"{base}.json").read_text(encoding="utf-8")), patch)
        tokenizer = Tokenizer.from_str(json.dumps(content))
        changed.append({"name": name, "base": base, "patch": patch,
                        "ids": [tokenizer.encode(text).ids for text in TEXTS]})
    (FOLDER / "variants.json").write_text(json.dumps(changed, separators=(",", ":")) + "\n", encoding="utf-8")
    if len(sys.argv) > 1:
        processor = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
        ids = [processor.encode(text, add_bos=True) for text in TEXTS]
        cases["encodings"]["llama2_model"] = [{"ids": each, "decoded": processor.decode(each)} for each in ids]
    (FOLDER / "cases.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n", encoding="utf-8")


main()
