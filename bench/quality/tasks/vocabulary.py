"""Words of the six task families and the tokenizer made of them: every word is one token.

The tokenizer is a byte-level BPE without merges (`ignore_merges`): a word of the list is one token, any other text
falls into bytes. `encode` and the `tokenizer.json` written by `tokenizer_json` agree token for token.
"""

import json
import random
import re

BOS, EOS = "<s>", "</s>"
# What GPT-2 splits text at, for texts in ASCII.
PATTERN = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


def made_up_words(count, seed, taken):
    """`count` pronounceable words that are not in `taken`, which they are added to."""
    rng = random.Random(seed)
    words = []
    while len(words) < count:
        word = rng.choice(["b", "br", "d", "dr", "f", "g", "gr", "h", "k", "l", "m", "n", "p", "pr", "r", "s", "st", "t",
                           "tr", "v", "w", "z"]) + rng.choice("aeiou") + rng.choice(
                               ["l", "m", "n", "r", "s", "t", "d", "k", "v"])
        word += rng.choice(["", "a", "o", "en", "in", "ik", "us", "and", "er", "or"])
        if word not in taken:
            taken.add(word)
            words.append(word)
    return words


NOUNS = """lamp boat clock drum kettle ladder mirror barrel basket bottle bucket button candle carpet chain chair chest
coin comb compass crown cup curtain dagger desk door fence fiddle flag flute fork gate glove hammer harp hat helmet horn
jar jug key kite knife lantern lock loom map mask medal mill needle oar organ oven paddle pan pencil piano pillow pipe
plate plough pot pump purse quilt rake razor ring robe rope rug saddle sail saw scarf shawl shelf shield ship shoe
shovel sickle sled spade spoon stamp statue stool stove sword table tent torch towel tray trumpet tub vase violin wagon
wheel whistle wreath anvil banner bell cannon cart coat crate""".split()
ADJECTIVES = """copper silver golden wooden broken painted carved heavy light narrow round square tall tiny old new
plain polished rusty green blue red white black yellow purple striped woven folded cracked glass marble iron bronze
velvet leather paper stone clay ivory crooked hollow oval royal simple dusty spare foreign modern ancient""".split()
JOBS = """baker teacher sailor farmer doctor painter weaver miller hunter tailor cook judge guard clerk singer dancer
potter mason smith barber porter miner writer nurse pilot lawyer gardener carpenter fisher printer""".split()
PREFIXES = """North South East West Port Fort Mount Lake Old New Upper Lower Great Little Saint Castle""".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth".split()
COUNTS = "zero one two three four five six seven eight nine ten".split()
ACTIONS = "buy sell repair paint move lend store burn clean hide".split()

FILLER_SUBJECTS = """rain wind snow sun river crowd road valley forest market harbour winter summer evening morning
garden village bridge hill meadow storm field kitchen street shore bird horse dog cat child""".split()
FILLER_VERBS = """slept waited turned settled rested shone grew faded stayed moved lingered returned paused sang fell
rose drifted gathered""".split()
FILLER_PLACES = """beside behind under near above beyond along around""".split()
FILLER_OBJECTS = """trees roofs walls stones hills clouds fields houses waves lamps gates steps ponds fires barns
towers paths boats leaves banks""".split()
FILLER_ADVERBS = "quietly slowly gently again then soon often still later once".split()

_taken = {word.lower() for pool in (NOUNS, ADJECTIVES, JOBS, PREFIXES, ORDINALS, COUNTS, ACTIONS, FILLER_SUBJECTS,
                                    FILLER_VERBS, FILLER_PLACES, FILLER_OBJECTS, FILLER_ADVERBS) for word in pool}
FIRST_NAMES = [word.capitalize() for word in made_up_words(144, 1, _taken)]
LAST_NAMES = [word.capitalize() for word in made_up_words(144, 2, _taken)]
TOWNS = [word.capitalize() for word in made_up_words(96, 3, _taken)]
LABELS = made_up_words(48, 4, _taken)
IDENTIFIERS = made_up_words(96, 5, _taken)
PARAMETERS = made_up_words(96, 6, _taken)
NUMBERS = [str(n) for n in range(1, 100)]

# Everything that the templates of families.py are made of beside the pools.
_TEMPLATE_TEXT = """
Answer the question based on the given text. Only give me the answer and do not output any other words.
Answer the question based on the given documents. Write the list. Story Document Paragraph Question Text Label Minutes
lives in works as a owns was born Where does live? What does work as? own? Who made kept found the by is A report on
It decided to proposed that should be List things were decided, order; Which paragraph mentions The pass key of
phone number How many times seen? Someone saw Line and where person live? here are paragraphs each text has one label
Complete the code below. def return class print result open close import from with main args value call
Here Notes notes thing numbered owned examples meeting Classify as above given following an example What was? count had that last reading asked who knows This seen times stayed Times
"""


def _word_tokens():
    """Token strings in the order of their ids, without special and byte tokens."""
    tokens = {}

    def add(*texts):
        for text in texts:
            if len(text) > 1:  # one character is one of the byte tokens
                tokens.setdefault(text)

    add("\n", "\n   ", " ", "\n\n")
    for mark in [".", ",", ":", ";", "?", "!", "(", ")", "):", "_", "=", "+", "-", "*", "/", "'", '"', "#", "().", "()",
                 "():", "[", "]", "%"]:
        add(mark, " " + mark)
    for piece in PATTERN.findall(_TEMPLATE_TEXT):
        if piece.strip().isalpha():
            add(" " + piece.strip(), piece.strip())
    for pool in (FIRST_NAMES, LAST_NAMES, TOWNS, NOUNS, ADJECTIVES, JOBS, PREFIXES, ORDINALS, COUNTS, ACTIONS, LABELS,
                 FILLER_SUBJECTS, FILLER_VERBS, FILLER_PLACES, FILLER_OBJECTS, FILLER_ADVERBS, NUMBERS):
        add(*(" " + word for word in pool))
    for word in IDENTIFIERS + PARAMETERS:
        add(" " + word, word)
    return list(tokens)


def _byte_characters():
    """The printable character that stands for each byte in a byte-level BPE, by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


BYTES = _byte_characters()
WORDS = _word_tokens()
SPECIALS = [BOS, EOS]
FIRST_WORD = len(SPECIALS) + 256
_ids = {text: FIRST_WORD + i for i, text in enumerate(WORDS)}
BOS_ID, EOS_ID = 0, 1
USED = FIRST_WORD + len(WORDS)
VOCABULARY = -(-USED // 64) * 64


def classes():
    """Token ids by what the words are: `classes`, the pools; `keys`, what questions ask about; `ends` of a sentence;
    `numbers`, and the words that stand before the number of a `passages`."""
    pools = [LAST_NAMES, NOUNS, IDENTIFIERS, PARAMETERS, FIRST_NAMES, TOWNS, ADJECTIVES, JOBS, PREFIXES, ORDINALS, COUNTS, ACTIONS,
             LABELS, FILLER_SUBJECTS, FILLER_VERBS, FILLER_PLACES, FILLER_OBJECTS, FILLER_ADVERBS, NUMBERS]

    def ids(pool):
        return [_ids[form] for word in pool for form in (" " + word, word) if form in _ids]

    return {"classes": [ids(pool) for pool in pools], "keys": ids(LAST_NAMES) + ids(NOUNS) + ids(IDENTIFIERS) + ids(ORDINALS),
            "ends": encode("."), "numbers": ids(NUMBERS), "passages": ids(["Paragraph", "Document"])}


def encode(text):
    """Token ids of `text`, without BOS."""
    ids = []
    for piece in PATTERN.findall(text):
        known = _ids.get(piece)
        if known is not None:
            ids.append(known)
        else:
            ids.extend(len(SPECIALS) + byte for byte in piece.encode())
    return ids


def tokenizer_json():
    """The same tokenizer as the text of a Hugging Face `tokenizer.json`."""
    written = ["".join(BYTES[byte] for byte in text.encode()) for text in WORDS]
    vocabulary = {special: i for i, special in enumerate(SPECIALS)}
    vocabulary.update({character: len(SPECIALS) + byte for byte, character in enumerate(BYTES)})
    for text, i in zip(written, range(FIRST_WORD, USED)):
        vocabulary.setdefault(text, i)
    added = [{"id": i, "content": special, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, special in enumerate(SPECIALS)]
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {BOS: {"id": BOS, "ids": [BOS_ID], "tokens": [BOS]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": vocabulary, "merges": []}}, ensure_ascii=False, indent=0)
