"""The six task families: texts with questions whose answers stand in the text.

Each task is a function `(world, tokens, questions) -> Task`: a text of about `tokens` tokens and up to `questions`
questions on it. The key of a question (a person, a thing, a function) has a fact in the text, and so have many others
of the same form: the distractors look like the answer.
"""

import random
import zlib
from dataclasses import dataclass, field

import vocabulary as v


@dataclass
class Task:
    body: str
    """Instruction and text, without the questions."""
    questions: list = field(default_factory=list)
    """Pairs of the question's text, which ends with the first words of the answer's sentence, and the rest of it."""
    classes: list = None
    """The labels of a classification."""


class World:
    """Draws people, things and sentences for one text: no key twice, and only those of its split.

    A person, thing, place, number or filler sentence is a combination of words; a hash puts each combination into the
    training split or, one in eight, into the evaluation split. So the words are common, the combinations are not.
    """

    def __init__(self, rng, evaluation):
        self.rng = rng
        self.evaluation = evaluation
        self._left = {}

    def mine(self, *words):
        return (zlib.crc32(" ".join(words).encode()) % 8 == 0) == self.evaluation

    def word(self, pool):
        """A word of a pool, no word twice in a text until all are used."""
        left = self._left.get(id(pool))
        if not left:
            left = self.rng.sample(pool, len(pool))
            self._left[id(pool)] = left
        return left.pop()

    def _pair(self, firsts, seconds, key):
        """A pair of this split; its word of pool `key` is new in this text."""
        while True:
            word = self.word(key)
            for partner in self.rng.sample(firsts if key is seconds else seconds, 12):
                pair = (partner, word) if key is seconds else (word, partner)
                if self.mine(*pair):
                    return " ".join(pair)

    def person(self):
        return self._pair(v.FIRST_NAMES, v.LAST_NAMES, v.LAST_NAMES)

    def thing(self):
        return self._pair(v.ADJECTIVES, v.NOUNS, v.NOUNS)

    def place(self):
        return self._pair(v.PREFIXES, v.TOWNS, v.TOWNS)

    def passkey(self):
        while True:
            numbers = self.rng.sample(v.NUMBERS, 3)
            if self.mine(*numbers):
                return " ".join(numbers)

    def filler(self):
        choose = self.rng.choice
        while True:
            subject, verb = choose(v.FILLER_SUBJECTS), choose(v.FILLER_VERBS)
            place, other = choose(v.FILLER_PLACES), choose(v.FILLER_OBJECTS)
            if self.mine(subject, verb, place, other):
                end = f" {choose(v.FILLER_ADVERBS)}" if self.rng.random() < 0.3 else ""
                return f" The {subject} {verb} {place} the {other}{end}."


def length(text):
    return len(v.encode(text))


def _spread(world, sentences, tokens, fillers=True):
    """The sentences in random order, with filler sentences between them up to `tokens` tokens, as a list."""
    room = tokens - sum(length(sentence) for sentence in sentences)
    sentences = list(sentences)
    while fillers and room > 0:
        sentence = world.filler()
        sentences.append(sentence)
        room -= length(sentence)
    world.rng.shuffle(sentences)
    return sentences


def _paragraphs(world, sentences, header):
    """Joins sentences to lines of a few sentences, each line after `header`."""
    lines, i = [], 0
    while i < len(sentences):
        size = world.rng.randint(4, 8)
        lines.append(header + "".join(sentences[i:i + size]))
        i += size
    return "\n".join(lines)


def _count(world, tokens, per_token, most):
    """How many facts a text of `tokens` tokens holds: dense in short texts, at most `most`."""
    return max(2, min(most, int(tokens * per_token * world.rng.uniform(0.5, 1.0))))


def _person_fact(world):
    """A statement on a person up to what is asked for, that, and the question."""
    person = world.person()
    kind = world.rng.randrange(4)
    if kind == 0:
        return f" {person} lives in", f" {world.place()}", f"Where does {person} live?"
    if kind == 1:
        return f" {person} works as a", f" {world.rng.choice(v.JOBS)}", f"What does {person} work as?"
    if kind == 2:
        return f" {person} owns the", f" {world.thing()}", f"What does {person} own?"
    return f" {person} was born in", f" {world.place()}", f"Where was {person} born?"


def _ask(question, stem):
    """A question, and how its answer starts."""
    return f"\n\nQuestion: {question}\nAnswer:{stem}"


def single_doc_qa(world, tokens, questions):
    facts = [_person_fact(world) for _ in range(_count(world, tokens, 1 / 14, 80))]
    head = "Answer the question based on the given text. Only give me the answer.\n\n"
    text = _paragraphs(world, _spread(world, [f"{stem}{answer}." for stem, answer, _ in facts],
                                      tokens - length(head)), "Story:")
    asked = world.rng.sample(facts, min(questions, len(facts)))
    return Task(head + text, [(_ask(question, stem), answer) for stem, answer, question in asked])


def _documents(world, groups, tokens):
    """One numbered document per group of sentences, padded with filler, in random order."""
    room = tokens - sum(length("".join(group)) + 6 for group in groups)
    groups = [list(group) for group in groups]
    while room > 0:
        sentence = world.filler()
        group = world.rng.choice(groups)
        group.insert(world.rng.randint(1, len(group)), sentence)
        room -= length(sentence)
    world.rng.shuffle(groups)
    return "\n".join(f"Document {i + 1}:" + "".join(group) for i, group in enumerate(groups))


_DOCUMENTS_HEAD = "Answer the question based on the given documents. Only give me the answer.\n\n"


def _thing_fact(world, thing):
    """As `_person_fact`, on a thing."""
    kind = world.rng.randrange(4)
    if kind == 3:
        return f" The {thing} is kept in", f" {world.place()}", f"Where is the {thing} kept?"
    verb = ["made", "found", "owned"][kind]
    return f" The {thing} was {verb} by", f" {world.person()}", f"Who {verb} the {thing}?"


def multi_doc_qa(world, tokens, questions):
    groups, asked = [], []
    for _ in range(min(40, _count(world, tokens, 1 / 22, 40))):
        thing = world.thing()
        stem, answer, question = _thing_fact(world, thing)
        groups.append([f" A report on the {thing}.", f"{stem}{answer}."])
        asked.append((_ask(question, stem), answer))
    text = _documents(world, groups, tokens - length(_DOCUMENTS_HEAD))
    return Task(_DOCUMENTS_HEAD + text, world.rng.sample(asked, min(questions, len(asked))))


def two_hop(world, tokens, questions):
    """The answer to the first half of a question is what the second half is about."""
    groups, asked = [], []
    for _ in range(max(2, _count(world, tokens, 1 / 40, 20))):
        thing, person, place = world.thing(), world.person(), world.place()
        groups.append([f" A report on the {thing}.", f" The {thing} was made by {person}."])
        groups.append([f" Notes on {person}.", f" {person} lives in {place}."])
        asked.append((_ask(f"Who made the {thing}, and where does that person live?", f" The {thing} was made by"),
                      f" {person}. {person} lives in {place}"))
    text = _documents(world, groups, tokens - length(_DOCUMENTS_HEAD))
    return Task(_DOCUMENTS_HEAD + text, world.rng.sample(asked, min(questions, len(asked))))


def summarization(world, tokens, questions):
    """What was decided, in order: decisions are numbered in words, proposals are not decisions."""
    count = min(world.rng.randint(3, 8), max(2, tokens // 30))
    decisions = [f"{world.rng.choice(v.ACTIONS)} the {world.thing()}" for _ in range(count)]
    proposals = [f" It was proposed to {world.rng.choice(v.ACTIONS)} the {world.thing()}."
                 for _ in range(_count(world, tokens, 1 / 60, 24))]
    head = "Here are the notes of a meeting. List the things that were decided, in order.\n\n"
    decided = [f" The {v.ORDINALS[i]} thing decided was to {decision}." for i, decision in enumerate(decisions)]
    others = _spread(world, proposals, tokens - length(head) - sum(length(sentence) for sentence in decided))
    places = sorted(world.rng.randint(0, len(others)) for _ in decided)
    for place, sentence in reversed(list(zip(places, decided))):
        others.insert(place, sentence)
    asked = [(_ask(f"List the {v.COUNTS[count]} things that were decided, in order.", ""), "".join(decided)[:-1])]
    for i in world.rng.sample(range(count), min(questions - 1, count)):
        asked.append((_ask(f"What was the {v.ORDINALS[i]} thing decided?", f" The {v.ORDINALS[i]} thing decided was to"),
                      f" {decisions[i]}"))
    return Task(head + _paragraphs(world, others, "Minutes:"), asked)


def few_shot(world, tokens, questions):
    """Labels that only the examples define: each goes with a few nouns. Training has up to 24, so that guessing pays
    less."""
    labels = [world.word(v.LABELS) for _ in range(world.rng.randint(4, 6 if world.evaluation else 24))]
    nouns = [world.word(v.NOUNS) for _ in range(max(4, min(48, tokens // 24)))]
    label_of = {noun: world.rng.choice(labels) for noun in nouns}

    def sentence(noun):
        choose = world.rng.choice
        while True:
            words = choose(v.FILLER_SUBJECTS), choose(v.FILLER_VERBS), choose(v.FILLER_PLACES), noun
            if world.mine(*words):
                return f" The {words[0]} {words[1]} {words[2]} the {noun}"

    head = "Here each text has one label. Classify the last text as in the examples.\n\n"
    lines, room, i = [], tokens - length(head), 0
    order = world.rng.sample(nouns, len(nouns))
    while room > 0 or i < len(order):
        noun = order[i] if i < len(order) else world.rng.choice(nouns)
        lines.append(f"Text:{sentence(noun)}.\nLabel: {label_of[noun]}")
        room -= length(lines[-1]) + 1
        i += 1
    world.rng.shuffle(lines)
    asked = [(f"\nText:{sentence(noun)}.\nLabel:", f" {label_of[noun]}")
             for noun in world.rng.sample(nouns, min(questions, len(nouns)))]
    return Task(head + "\n".join(lines), asked, labels)


def passage_retrieval(world, tokens, questions):
    """Each paragraph is about one person and ends with its number."""
    count = max(3, min(40, tokens // 36))
    persons = [world.person() for _ in range(count)]
    groups = [[world.rng.choice([f" Here {person} stayed.", f" Someone saw {person}.", f" Someone asked {person}."])]
              for person in persons]
    head = "Here are numbered paragraphs. Answer the question based on the given text.\n\n"
    room = tokens - length(head) - sum(length("".join(group)) + 9 for group in groups)
    while room > 0:
        sentence = world.filler()
        group = world.rng.choice(groups)
        group.insert(world.rng.randint(0, len(group)), sentence)
        room -= length(sentence)
    numbers = world.rng.sample(v.NUMBERS, count)
    text = "\n".join("Text:" + "".join(group) + f" This was Paragraph {number}."
                     for group, number in zip(groups, numbers))
    picked = world.rng.sample(range(count), min(questions, count))
    return Task(head + text, [(_ask(f"Which paragraph mentions {persons[i]}?", f" {persons[i]} is in"),
                               f" Paragraph {numbers[i]}") for i in picked])


def passkey(world, tokens, questions):
    facts = []
    for _ in range(_count(world, tokens, 1 / 28, 16)):
        person = world.person()
        facts.append((f" The pass key of {person} is", f" {world.passkey()}", f"What is the pass key of {person}?"))
    distractors = [f" The phone number of {world.person()} is {world.passkey()}."
                   for _ in range(_count(world, tokens, 1 / 100, 16))]
    head = "Answer the question based on the given text. Only give me the answer.\n\n"
    sentences = _spread(world, [f"{stem}{answer}." for stem, answer, _ in facts] + distractors, tokens - length(head))
    asked = world.rng.sample(facts, min(questions, len(facts)))
    return Task(head + _paragraphs(world, sentences, "Story:"),
                [(_ask(question, stem), answer) for stem, answer, question in asked])


def counting(world, tokens, questions):
    nouns = [(world.thing(), world.rng.randint(1, 5)) for _ in range(_count(world, tokens, 1 / 40, 12))]
    sentences = [f" Someone saw the {thing}." for thing, count in nouns for _ in range(count)]
    head = "Answer the question based on the given text. Only give me the answer.\n\n"
    text = _paragraphs(world, _spread(world, sentences, tokens - length(head)), "Story:")
    asked = world.rng.sample(nouns, min(questions, len(nouns)))
    return Task(head + text, [(_ask(f"How many times was the {thing} seen?", f" Times the {thing} was seen:"),
                               f" {count}") for thing, count in asked])


def code(world, tokens, questions):
    """The call of a function, or the use of a file, that is defined far above."""
    definitions, asked = [], []
    room = tokens - 8
    while room > 0 and len(definitions) < 60:
        name = world.word(v.IDENTIFIERS)
        names = world.rng.sample(v.PARAMETERS, 2)
        while not world.mine(name, *names):
            names = world.rng.sample(v.PARAMETERS, 2)
        first, second = names
        if world.rng.random() < 0.6:
            operator = world.rng.choice(["+", "-", "*"])
            definitions.append(f"\ndef {name}({first}, {second}):\n    return {first} {operator} {second}\n")
            asked.append((f"\nresult = {name}(", f"{first}, {second})"))
        else:
            number = world.rng.choice(v.NUMBERS)
            definitions.append(f"\n{first} = open({name}, {number})\n")
            asked.append((f"\nclose({name},", f" {number})"))
        room -= length(definitions[-1])
        while room > 0 and world.rng.random() < 0.5:
            definitions.append(f"\n# {world.filler()[1:-1]}\n")
            room -= length(definitions[-1])
    while room > 0:
        definitions.append(f"\n# {world.filler()[1:-1]}\n")
        room -= length(definitions[-1])
    world.rng.shuffle(definitions)
    head = "Complete the code below.\n"
    asked = world.rng.sample(asked, min(questions, len(asked)))
    return Task(head + "".join(definitions), asked)


# Name, category of LongBench that it mirrors, function, most tokens of an answer.
TASKS = {
    "tiny_single_doc_qa": ("single-document QA", single_doc_qa, 6),
    "tiny_multi_doc_qa": ("multi-document QA", multi_doc_qa, 8),
    "tiny_two_hop": ("multi-document QA", two_hop, 16),
    "tiny_summarization": ("summarization", summarization, 104),
    "tiny_few_shot": ("few-shot learning", few_shot, 4),
    "tiny_passage_retrieval": ("synthetic tasks", passage_retrieval, 4),
    "tiny_passkey": ("synthetic tasks", passkey, 8),
    "tiny_counting": ("synthetic tasks", counting, 4),
    "tiny_code": ("code completion", code, 12),
}


def make(name, seed, evaluation, tokens, questions):
    """The text and questions of task `name` that belong to `seed`."""
    world = World(random.Random(f"{name} {seed} {evaluation} {tokens}"), evaluation)
    return TASKS[name][1](world, tokens, questions)
