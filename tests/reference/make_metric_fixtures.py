"""Writes tests/reference/fixtures/longbench_metrics/: the scores that LongBench's metrics give, with the packages rouge
and fuzzywuzzy. Usage: make_metric_fixtures.py [LONGBENCH_FOLDER], a folder of *.jsonl with predictions."""

import collections
import difflib
import json
import pathlib
import random
import re
import string
import sys
import unicodedata
import warnings

warnings.filterwarnings("ignore", message="Using slow pure-python SequenceMatcher")
from fuzzywuzzy import fuzz  # noqa: E402
from rouge import Rouge  # noqa: E402

FOLDER = pathlib.Path(__file__).parent / "fixtures" / "longbench_metrics"
FIRST_LINE_ONLY = {"trec", "triviaqa", "samsum", "lsht", "tiny_few_shot"}

# LongBench asks for fuzzywuzzy without its optional python-Levenshtein, which gives other ratios.
assert fuzz.SequenceMatcher is difflib.SequenceMatcher


# --- The metrics, from LongBench's published definitions -------------------------------------------------------------


def bag_of_words(text):
    bare = text.lower().translate({ord(sign): None for sign in string.punctuation})
    return collections.Counter(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def token_f1(prediction, answer):
    predicted, expected = bag_of_words(prediction), bag_of_words(answer)
    same = (predicted & expected).total()
    if same == 0:
        return 0.0
    precision, recall = same / predicted.total(), same / expected.total()
    return 2 * precision * recall / (precision + recall)


def rouge_l(prediction, answer):
    try:
        return Rouge().get_scores([prediction], [answer], avg=True)["rouge-l"]["f"]
    except ValueError:  # no sentence; a RecursionError, which LongBench counts as 0, must not occur here
        return 0.0


def classification(prediction, answer, all_classes):
    named = [name for name in all_classes if name in prediction]
    for name in named:  # sic: the list changes under the loop
        if name != answer and name in answer:
            named.remove(name)
    return 1 / len(named) if answer in named else 0.0


def share(number, prediction):
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(number) / len(numbers) if numbers else 0.0


def retrieval(prediction, answer):
    return share(re.findall(r"Paragraph (\d+)", answer)[0], prediction)


def count(prediction, answer):
    return share(answer, prediction)


def code_similarity(prediction, answer):
    lines = prediction.lstrip("\n").split("\n")
    code = [line for line in lines if not any(sign in line for sign in ("`", "#", "//"))]
    return fuzz.ratio(code[0] if code else "", answer) / 100


METRICS = {
    token_f1: "narrativeqa qasper multifieldqa_en hotpotqa 2wikimqa musique triviaqa "
    "tiny_single_doc_qa tiny_multi_doc_qa tiny_two_hop tiny_passkey",
    rouge_l: "gov_report qmsum multi_news samsum tiny_summarization",
    classification: "trec lsht tiny_few_shot",
    retrieval: "passage_retrieval_en tiny_passage_retrieval",
    count: "passage_count tiny_counting",
    code_similarity: "lcc repobench-p tiny_code",
}
METRIC_OF = {dataset: metric for metric, names in METRICS.items() for dataset in names.split()}


def best(metric, prediction, answers, *more):
    return max([0.0] + [metric(prediction, answer, *more) for answer in answers])


def score(dataset, prediction, answers, all_classes):
    if dataset in FIRST_LINE_ONLY:
        prediction = prediction.lstrip("\n").split("\n")[0]
    metric = METRIC_OF[dataset]
    return best(metric, prediction, answers, *([all_classes] if metric is classification else []))


# --- Texts of our own ------------------------------------------------------------------------------------------------

SPACES = "".join(chr(point) for point in range(0x110000) if chr(point).isspace())
DIGITS = [chr(point) for point in range(0x110000) if unicodedata.category(chr(point)) == "Nd"]
CHANGED_BY_LOWER = [c for c in map(chr, range(0x110000)) if not 0xD800 <= ord(c) < 0xE000 and c.lower() != c]
# One character of each category that may stand beside an article.
NEIGHBOURS = [
    next(c for c in map(chr, range(0x80, 0x110000)) if unicodedata.category(c) == category)
    for category in sorted({unicodedata.category(chr(point)) for point in range(0x80, 0x110000)} - {"Cs"})
]

WORD_PAIRS = [
    ("", ""),
    ("", "a ferry"),
    ("the ferry", ""),
    ("?!...", "?!..."),
    (" \n\t", "lamp"),
    ("The An A", "a the"),
    ("The ferry leaves at noon.", "ferry leaves at noon"),
    ("THE FERRY, it left (at noon)!", "a ferry left at noon"),
    ("ferry ferry ferry", "ferry"),
    ("ferry", "ferry ferry lamp"),
    ("lamp lamp oar oar oar", "oar lamp lamp lamp"),
    ("another theme, at an angle", "theme angle"),
    ("a-b the-lamp an_oar a_", "ab thelamp anoar a"),
    ("don't won't", "dont wont"),
    ("$5 + 7 = 12 <b>", "5 7 12 b"),
    ("\u201cThe\u201d harbour \u2014 the\u2014lamp", "harbour lamp"),
    ("caf\u00e9 CAF\u00c9 cafe\u0301", "caf\u00e9 cafe\u0301"),
    ("a\u0301 a\u00e1 a\u200b a\ufe0f the\u00b2 the\u0661", "\u0301 \u200b"),
    (
        "\u039f\u0394\u039f\u03a3 \u03a3 \u03a3\u0391 \u0391\u03a3.\u0391 \u0391\u03a3\u0301",
        "\u03bf\u03b4\u03bf\u03c2 \u03c3 \u03c3\u03b1 \u03b1\u03c3\u03b1 \u03b1\u03c2\u0301",
    ),
    ("\u0130stanbul STRASSE \u1e9e \u00df \ufb01n", "i\u0307stanbul strasse \u00df fin"),
    ("\u6e2f\u53e3 \u706f\u3002 \u706f", "\u6e2f\u53e3 \u706f"),
    ("\U0001f6a2 ferry \U0001f6a2\U0001f3fd \U00010400", "\U0001f6a2 \U00010428"),
    ("x".join(SPACES), "x x x"),
    (" ".join(CHANGED_BY_LOWER), " ".join(c.lower() for c in CHANGED_BY_LOWER)),
    (" ".join("a" + c + "a " + c + "the " + "an" + c for c in NEIGHBOURS), " ".join(NEIGHBOURS) + " a the an"),
]

SENTENCE_PAIRS = [
    ("", ""),
    (" ", " "),
    (".", "."),
    (". .", "oar."),
    (" . ", "oar. "),
    ("oar. ", "oar. "),
    ("lamp", "oar"),
    ("The pilot left early.", "The pilot left early."),
    ("the pilot left. the pilot left.", "the pilot left."),
    ("We met at dawn. The pilot left early. Nobody spoke.", "Nobody spoke at dawn. The pilot and the cook left."),
    ("Oars cost 3.5 crowns, i.e. much.", "Oars cost 3.5 crowns. Much."),
    ("one two three four five six", "four five six one two three"),
    ("b a", "a b"),
    ("a b a b a b", "b a a b b a"),
    ("\u706f\u706f \u6e2f\u53e3\u3002 the\u00a0lamp\u2003caf\u00e9", "\u706f\u706f the lamp caf\u00e9\u3002"),
    ("Line one\nline two.\r\nLine three\x1cfour", "Line one line two. Line three four."),
    ("Ferry, ferry! Ferry?", "ferry ferry ferry"),
    ("...wait... what...", "wait. what"),
]

CODE_PAIRS = [
    ("", ""),
    ("\n\n", ""),
    ("", "x = 1"),
    ("x = 1", ""),
    ("x = 1", "x = 1"),
    ("\n\n    return lamp\n    return oar", "    return lamp"),
    ("```python\n# the lamp\nlamp.light()\n", "lamp.light()"),
    ("// first\n  oar(); // second\n  row(oar);\r\n", "  row(oar);"),
    ("# only\n# comments", "lamp = 2"),
    ("# only\n# comments", ""),
    ("# comment\n\nlamp", "lamp"),
    ("half = lamp / 2\nlamp", "lamp"),
    ("\tif (a == b) {", "    if (a != b) {"),
    ("ababab", "aaaaab"),
    ("abc", "cadb"),
    ("cadb", "abc"),
    ("caf\u00e9 = '\U0001f6a2'", "cafe = '\U0001f6a2\U0001f6a2'"),
    ("abcdefgh" * 3, "a" * 8),  # ratio 0.125 or less: rounding
    ("x" * 199, "x" * 100 + "y" + "x" * 99),
    ("x" * 150, "x" * 200),
    ("load(lamp, oar); " * 20, "store(oar, lamp); " * 15),
    (
        "self.harbour.lamps[3].light(level=0.5, colour='amber')  " * 6,
        "harbour.lamps[4].dim(colour='red', level=0.25) " * 6,
    ),
]
# 1.25 m percent, which ends in .5: Python rounds to even.
CODE_PAIRS += [("x" * m + "p" * (80 - m), "x" * m + "q" * (80 - m)) for m in range(2, 80, 4)]

CLASSES = ["lamp", "lamp oil", "oil", "oar", "oak oar", "Boat", "Schl\u00fcssel", "lamp"]
CLASS_CASES = [
    (prediction, answer, classes)
    for classes in (CLASSES, CLASSES[::-1])
    for prediction in ("", "oak oar", "lamp oil", "a lamp oil, an oak oar", "boat", "Boat Schl\u00fcssel oar")
    for answer in ("lamp", "lamp oil", "oak oar", "Boat", "Schl\u00fcssel")
]

NUMBER_PREDICTIONS = ["", "17", "Paragraph 17", "Paragraph 17, no, 3", "17 17 4", "017", "17.0", "x17y1717", "no"]
NUMBER_PREDICTIONS += ["-17", "1\u00b27", "\u0661\u0667 17", " 1 ".join(DIGITS) + " 17"]

DATASET_CASES = [
    ("qasper", "The lamp", ["an oar", "lamp", "lamp oil"], None),
    ("qasper", "lamp\n\nQuestion: who?", ["lamp"], None),
    ("qasper", "lamp", [], None),
    ("triviaqa", "\n\nlamp\n\nQuestion: who?", ["oar", "lamp"], None),
    ("triviaqa", "\r\nlamp", ["lamp"], None),
    ("samsum", "\nAda lights the lamp.\nBo: hi", ["Bo rows.", "Ada lights a lamp."], None),
    ("samsum", "\n\n", ["Bo rows."], None),
    ("gov_report", "\nThe lamp.\nThe oar.", ["The lamp. The oar."], None),
    ("trec", "\noar\nType: lamp", ["oar"], CLASSES),
    ("trec", "lamp or oar", ["oar", "lamp"], CLASSES),
    ("lsht", "oar\nlamp", ["oar"], CLASSES),
    ("tiny_few_shot", "oar\nlamp", ["oar"], CLASSES),
    ("passage_count", "There are 12. Or 13?", ["12"], None),
    ("passage_retrieval_en", "Paragraph 3 or Paragraph 4", ["Paragraph 4"], None),
    ("passage_retrieval_en", "4", ["It is Paragraph x, or Paragraph Paragraph 4, Paragraph 5"], None),
    ("lcc", "# why\nlamp.light()\n", ["oar", "lamp.lit()"], None),
    ("lcc", "lamp", [""], None),
]
# On this text no two metrics agree.
TELLING = ("Paragraph 7 lamp 7. Oar.\n8 boats", ["Paragraph 7", "Paragraph 7 lamp"], ["lamp", "oar", "Paragraph 7"])
DATASET_CASES += [(dataset, *TELLING) for dataset in METRIC_OF]


def random_pairs(draw):
    """Random texts over few words or letters, so that many alignments tie."""

    def texts(units, *sizes):
        return ["".join(draw.choices(units, k=draw.randint(*sizes))) for _ in range(2)]

    for size in [(1, 60)] * 20 + [(3, 10)] * 60:
        yield rouge_l, *texts([letter + end for letter in "abcdef" for end in (" ", " ", " ", ". ", ".")], *size)
    for _ in range(40):
        yield code_similarity, *texts("abcdefgh (.)"[: draw.choice([2, 4, 12])], 1, 12)
    for _ in range(12):  # from a length of 200 on difflib starts no match at a frequent character
        yield code_similarity, *texts([letter.join(" (") for letter in string.ascii_letters], 70, 90)
    for _ in range(30):
        words = [word + end for word in ("the", "A", "oar", "Lamp") for end in (" ", " ", "- ", "\u00b2 ", "\u0301 ")]
        yield token_f1, *texts(words, 1, 20)


def made_up():
    pairs = [(token_f1, *pair) for pair in WORD_PAIRS]
    pairs += [(rouge_l, *pair) for pair in SENTENCE_PAIRS]
    pairs += [(code_similarity, *pair) for pair in CODE_PAIRS]
    pairs += [(classification, *case) for case in CLASS_CASES]
    pairs += [(count, text, number) for text in NUMBER_PREDICTIONS for number in ("17", "1", "\u0661\u0667")]
    pairs += [(retrieval, prediction, "Paragraph 17") for prediction in NUMBER_PREDICTIONS]
    pairs += list(random_pairs(random.Random(20240714)))
    return {
        "metrics": [
            {"metric": metric.__name__, "prediction": prediction, "answer": answer}
            | ({"all_classes": more[0]} if more else {})
            | {"score": metric(prediction, answer, *more)}
            for metric, prediction, answer, *more in pairs
        ],
        "datasets": [
            {"dataset": name, "prediction": prediction, "answers": answers, "all_classes": classes}
            | {"score": score(name, prediction, answers, classes)}
            for name, prediction, answers, classes in DATASET_CASES
        ],
    }


# --- Real predictions, of which only the scores are written ----------------------------------------------------------


def real_items(folder):
    for file in sorted(pathlib.Path(folder).glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").split("\n"):
            if line:
                item = json.loads(line)
                if isinstance(item["answers"], str):
                    item["answers"] = json.loads(item["answers"])
                yield item


def real(folder):
    result = {}
    for item in real_items(folder):
        prediction, answers = item["prediction"], item["answers"]
        result[item["_id"]] = {
            "bytes": len(prediction.encode()),
            "score": score(item["dataset"], prediction, answers, item["all_classes"]),
        } | {
            metric.__name__: best(metric, prediction, answers)
            for metric in (token_f1, rouge_l, count, code_similarity)
        }
    return result


def write(name, value):
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / name).write_text(json.dumps(value, separators=(",", ":")) + "\n", encoding="ascii")


def main():
    assert len({score(names.split()[0], *TELLING) for names in METRICS.values()}) == len(METRICS)
    write("made_up.json", made_up())
    if len(sys.argv) > 1:
        write("longbench.json", real(sys.argv[1]))


main()
