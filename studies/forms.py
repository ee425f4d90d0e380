"""Records of many forms with open names and values, on which nano models are trained.

A form says how a record states values and asks for them: a log line, an entry of JSON, a row of a
table, a sentence, or random words around name and value. Each row of a training draws its forms
from a small grammar, and draws names and values by spelling: words, syllables, letters, digits and
random tokens. The statements of the evaluation (LongEval's lines and topics, pass keys, several
keys and variables in prose) are not in the grammar; patterns of their questions are, with other
words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from ntk_alibi.evaluation.records.record import Builder, Case, Encode, cached_encoder
from ntk_alibi.evaluation.records.words import (
    ADJECTIVES,
    NOUNS,
    ORDINALS,
    TOPIC_NOUNS,
    TOPIC_PLACES,
    TOPIC_SUBJECTS,
)

#: Words of the tokenizer that prose lacks.
TASK_WORDS = (*ADJECTIVES, *NOUNS, *ORDINALS, *TOPIC_NOUNS, *TOPIC_PLACES, *TOPIC_SUBJECTS)

#: Statements; `{n}` is the name, `{v}` the value, `{a}` and `{b}` words that a form keeps, and
#: `{t}` digits that differ in each statement.
STATEMENTS = (
    '"{n}": "{v}",\n', '"{n}": {v},\n', '{{"{a}": "{n}", "{b}": "{v}"}},\n', "{n}: {v}\n",
    '{{"{a}": "{n}", "{b}": {v}}}\n', "{n} = {v}\n", "{n}={v}\n", "{n}={v}; ", "{n}={v}&",
    "{n} -> {v}\n", "{n} => {v}\n", "({n}, {v})\n", "[{n}] {v}\n", "<{n}> {v}\n", "- {n}: {v}\n",
    "* {n} ({v})\n", "{a}.{n} = {v};\n", "{a}[{n}] = {v}\n", '{a}["{n}"] = "{v}"\n',
    "| {n} | {v} |\n", "| {t} | {n} | {v} |\n", "{n},{v}\n", "{t},{n},{v},{t}\n", "{n};{v};{t}\n",
    "{n}\t{v}\n", "{t}\t{n}\t{v}\n", "{t} INFO {n} {a}={v}\n", "[{t}] {n}: {a} {v}\n",
    "{t} {a} {n} -> {v} ok\n", "{a}({n}) returned {v}\n", "set {n} to {v}\n",
    "<{a} {b}={n}>{v}</{a}>\n", "{n} {v}\n", "{n} | {v} | {t}\n", "{a} {n} {b} {v}\n",
    "# {n}\n{v}\n", "{n}:\n  {a}: {v}\n",
    " The {a} by the {b} {n} has {v}.", " {n} has the {a} {v}.", " We gave {n} the {a} {v}.",
    " {n} lives in {v}.", " {n} said: {v}!", " {a} {n} went to {v}.", " The {a} for {n}: {v}.",
    " Remember that {n} is {v}.", " {n} gave {v} to the {a}.", " As for {n}, its {a} was {v}.",
    "\n{a} {n}, {b} {v}.\n", " {n}, {v};", " {n} ({a}: {v}),",
)  # fmt: skip

#: Questions; they end where the value begins, in the statement's own way if `{m}` is there, which
#: is the text between name and value.
QUESTIONS = (
    "{n}{m}", "{n}{m}", "{s}", "{s}", "What is the {a} of {n}?{l}", "What is the {a} of {n}? {s}",
    "Which {a} has {n}?{l}", "Question: what is the {a} of {n}?\nAnswer:{l}", "Q: {n}\nA:{l}",
    "Tell me the {a} of {n}:{l}", "And {n}?{l}", "What is {n}?{l}", "What was {n}? It was{l}",
    "{b} {n}? {n}{m}", "{w} {n}?{l}", "{w} {n} {w}?{l}", "{w} {n}:{l}", "{w} {n} {w}:{l}",
    "What about the {a} {n}?{l}", "Find {n}{m}", "As for {n}, it is{l}", "{n} =>{l}",
    "HUMAN: {w} {n} {w}?\nBOT:{l}", "{w} {n}{m}", "Look up {n}. {s}",
)  # fmt: skip

#: Statements of a talk with replies, and questions whose answers begin as the replies do.
TALKS = (
    "\n{a}: {n} is {v}.\n{b}: {w}.", "\n{a}: My {n} is {v}\n{b}: {w}", "\n{a}: {n}, {v}!\n{b}:",
    "\n{a}: {w} {n} {w} {v}\n{b}:", "\n{a}: We said {n} {w}, {v}.\n{b}:",
    "\n{a}> {n} {v}\n{b}> {w}",
)  # fmt: skip
TALK_QUESTIONS = (
    "\n{a}: What is {n}?\n{b}:", "\n{a}: {w} {n}?\n{b}:", "\n{a}: {w} {n} {w}?\n{b}:",
    "\n{a}: And {n}?\n{b}:", "\n{a}: Which was my {n}?\n{b}:", "\n{a}> {w} {n}\n{b}>",
)  # fmt: skip

#: Usual names of speakers.
SPEAKERS = ("USER", "ASSISTANT", "User", "Assistant", "HUMAN", "BOT", "Q", "A")

#: Questions of a talk whose statements are of any kind.
ASKED = tuple(x.removesuffix("{l}") for x in QUESTIONS if x.endswith("?{l}"))

#: Words of phrases that are common in records.
LABELS = (
    "name city code color key id state price owner port phone room date country capital animal "
    "food job team value status type size weight speed age rank score level group street book song"
).split()

#: Words of held-out forms, which `Forms.common` leaves out.
UNUSED = {"line", "lines", "number", "numbers", "magic", "topic", "USER", "ASSISTANT", "REGISTER"}

OPENERS = ("", "", "", "(", "[", '"', "'", "<", "{{", "*", "#", "@", "~", "`")
CLOSERS = {"": "", "(": ")", "[": "]", "<": ">", "{{": "}}", "#": "", "@": "", "~": ""}
SEPARATORS = (":", " =", " ->", " =>", " |", ",", ";", " -", " is", " was", " has", ".", "", " to",
              " :", " ==", "/", " at", " in", " as")  # fmt: skip
ENDS = (".", ";", ",", "", "", "", "!")

#: Share of records that repeat statements, of forms (but simple ones) from `TALKS`, and of phrases
#: that are labels.
REPEATING, TALKING, LABELLED = 0.1, 0.1, 0.3

#: Questions that begin as the statement does, and statements of name and value alone, with which a
#: training begins.
VERBATIM = ("{n}{m}", "{s}")
SIMPLE = (
    "{n}: {v}\n", "{n} = {v}\n", "{n} -> {v}\n", "({n}, {v})\n", "[{n}] {v}\n", "{n},{v}\n",
    " {n} is {v}.", '"{n}": "{v}",\n',
)  # fmt: skip

#: Statements of a record at least, and how often a record is drawn again that does not fit.
FEWEST, TRIES = 3, 100

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SYLLABLES = tuple(c + v for c in "bdfghjklmnprstvwz" for v in "aeiou")


@dataclass(frozen=True)
class Form:
    """How a record states values and asks for them; `{n}` and `{t}` are left to fill.

    Attributes:
        before, after: the statement before and after the value.
        question: the question up to the answer.
        lead: "" or " ", which belongs to the value.
    """

    before: str
    after: str
    question: str
    lead: str


#: Forms whose statements the grammar does not draw; a recipe may train lines beside it.
HELD_OUT = {
    "lines": Form(
        "line {n}: REGISTER_CONTENT is <", ">\n", "What is the REGISTER_CONTENT of line {n}? <", ""
    ),
    "topics": Form(
        "\nUSER: Let us discuss our {n} topic,", ".\nASSISTANT:",
        "\nUSER: What was our {n} topic?\nASSISTANT:", " ",
    ),
    "keys": Form(
        "\nThe magic number of {n} is", ".\n",
        "\nWhat is the magic number of {n}? The magic number of {n} is", " ",
    ),
    "numbers": Form(
        " The number of {n} is", ".", " Question: what is the number of {n}?\nAnswer:", " "
    ),
}  # fmt: skip

#: More forms whose statements the grammar does not draw; they were written after the grammar.
FRESH = {
    "letters": Form(
        "\nDear {n}, your parcel is in", ". Yours, the office.\n",
        "\nWhere is the parcel for {n}? It is in", " ",
    ),
    "code": Form('\nif key == "{n}": return "', '"\n', '\nassert lookup("{n}") == "', ""),
    "notes": Form(
        " Note about {n} from the meeting: we count", " of them;",
        " And how many are there of {n}? We count", " ",
    ),
    "chat": Form("\n[{t}] {n} joined; seat", ", welcome.\n", "\n/seat {n}\nseat", " "),
}  # fmt: skip

#: Forms for the endpoint of the study of one factor for a text, written before any model was asked
#: in them; their statements are not drawn by the grammar.
NEW = {
    "drawers": Form(
        " Whoever looks for {n} should open drawer", ".", " Where is {n}? You should open drawer",
        " ",
    ),
    "votes": Form(
        "\n* candidate {n}, votes counted:", ";\n", "\n* votes counted, candidate {n}:", " "
    ),
    "shelves": Form('\n  - id: {n}\n    shelf: "', '"', '\n  - wanted: {n}\n    shelf: "', ""),
    "diary": Form(
        "\nDiary, page {t}. Met {n}, who showed me", " and left.\n",
        "\nMet {n} again, who once showed me", " ",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Forms:
    """Records of forms that are drawn anew for each record, and questions about some statements.

    Attributes:
        prose: sentences between statements.
        pieces: texts of the tokenizer's tokens, of which some names consist.
        common: pieces that are words.
        questions: the greatest number of questions about a record.
        easy: share of records whose names and values are single tokens, and share of forms whose
            questions begin as their statements do.
        simple: share of forms with statements of name and value alone.
        talks: share, of the other forms with a space before the value, that are put into a talk.
        amid_prose: share of records with fewer statements amid prose.
        form: the form of all records; None for forms drawn from the grammar.
    """

    prose: tuple[str, ...] = field(repr=False)
    words: tuple[str, ...] = field(repr=False)
    pieces: tuple[str, ...] = field(repr=False)
    common: tuple[str, ...] = field(repr=False)
    questions: int = 16
    easy: float = 0.2
    simple: float = 0.1
    talks: float = 0.0
    amid_prose: float = 0.15
    form: Form | None = None

    @classmethod
    def of(cls, tokenizer: Any, prose: tuple[str, ...]) -> Forms:
        """Return records with the words of prose and the tokens of a tokenizer."""
        found = sorted(set(re.findall(r"\b[A-Za-z]{2,9}\b", " ".join(prose))))
        texts = [str(tokenizer.decode([token])).strip() for token in range(len(tokenizer))]
        special = tokenizer.all_special_tokens
        pieces = [x for x in texts if x.isprintable() and x.isascii() and x not in ("", *special)]
        common = [x for x in pieces if x.isalpha() and len(x) > 2 and x not in UNUSED]
        return cls(prose, tuple(found), tuple(pieces), tuple(common))

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """Draw a case; see `RecordKind`. What does not fit is drawn again."""
        draw = Random(int(rng.integers(2**63)))
        for _ in range(TRIES):
            if case := self.try_case(encode, length, draw):
                return case
        raise ValueError(f"length must hold a record of forms and a question, got {length}")

    def try_case(self, encode: Encode, length: int, draw: Random) -> Case | None:
        """Draw a case, or None if it does not fit."""
        encode = cached_encoder(encode)
        forms = [self.form or self.new_form(draw) for _ in range(draw.choice((1, 1, 2)))]
        plain = draw.random() < self.easy
        names = list(dict.fromkeys(self.spellings(max(2, length // 8), draw, plain)))
        stated: list[tuple[str, str, str]] = []
        asked: list[tuple[str, str, str]] = []
        for name, value in zip(names, self.spellings(len(names), draw, plain), strict=True):
            form = draw.choice(forms)
            said = form.lead + value
            stated.append((fill(form.before, name, draw), said, fill(form.after, name, draw)))
            asked.append((fill(form.question, name, draw), said, "\n"))
        encoded = encode([text for sentence in [*stated, *asked] for text in sentence])
        costs, question_costs = np.array(list(map(len, encoded))).reshape(2, -1, 3).sum(-1)
        order = np.arange(len(names))
        if draw.random() < REPEATING:  # one statement again and again, others a few times
            few = range(min(len(names), draw.randint(2, 6)))
            order = np.array(draw.choices(few, [4.0**-i for i in few], k=len(names)))
        questions = draw.choice((self.questions, self.questions, draw.randint(1, self.questions)))
        longest = np.maximum.accumulate(question_costs[order])
        most = np.minimum(questions, np.arange(len(order)) + 1)
        count = int(np.searchsorted(costs[order].cumsum() + longest * most + 1, length, "right"))
        if count < FEWEST:
            return None
        if draw.random() < self.amid_prose:
            count = max(FEWEST, int(count ** draw.random()))
        stated_names = dict.fromkeys(order[:count].tolist())
        chosen = draw.sample(list(stated_names), min(questions, len(stated_names)))
        room = length - int(costs[order[:count]].sum() + question_costs[chosen].sum()) - 1
        places = np.zeros(count + 1, int)
        if room > 2 * costs.max():
            places = np.diff([0, *sorted(draw.choices(range(room + 1), k=count)), room])
        rng = np.random.default_rng(draw.getrandbits(63))
        builder = Builder(encode)
        sources = {}
        for i, share in zip(order[:count].tolist(), places[:-1], strict=True):
            builder.fill(self.prose, int(share), rng)
            sources[i] = builder.state(*stated[i])
        builder.fill(self.prose, int(places[-1]), rng)
        builder.add("\n")
        for i in chosen:
            question, said, end = asked[i]
            builder.ask(question, said, end, sources[i])
        return builder.case()

    def new_form(self, draw: Random) -> Form:
        """Draw a form from the grammar."""
        a, b = self.phrase(draw), self.phrase(draw)
        simple = draw.random() < self.simple
        talking = not simple and draw.random() < TALKING
        if simple:
            statement = draw.choice(SIMPLE)
        elif talking:
            statement = draw.choice(TALKS)
        else:
            statement = (
                draw.choice(STATEMENTS) if draw.random() < 0.5 else self.free_statement(draw)
            )
        statement = self.with_phrases(statement, draw)
        statement = statement.replace("{{", "{").replace("}}", "}")
        statement = statement.replace("{a}", a).replace("{b}", b)
        before, after = statement.split("{v}")
        lead = " " if before.endswith(" ") else ""
        before = before.removesuffix(lead)
        between = before.partition("{n}")[2]
        last = re.search(r" ?[^\w\s]*$", between) if draw.random() < 0.7 else None
        parts = {"{m}": between, "{s}": before, "{l}": last.group() if last else ""}
        questions = TALK_QUESTIONS if talking else QUESTIONS
        question = draw.choice(VERBATIM if draw.random() < self.easy else questions)
        if lead and not talking and draw.random() < self.talks:
            first, second = (self.speaker(draw) for _ in range(2))
            reply = draw.choice(("", "", f" {self.phrase(draw)}."))
            before, after = f"\n{first}: {before.lstrip()}", f"{after.rstrip()}\n{second}:{reply}"
            question = f"\n{first}: {draw.choice(ASKED)}\n{second}:"
        if statement.startswith(" {n}") and question.startswith("{n}"):
            question = " " + question  # the tokens of a name depend on the space before it
        for mark, text in {**parts, "{a}": a, "{b}": b}.items():
            question = question.replace(mark, text)
        return Form(before, after, self.with_phrases(question, draw), lead)

    def speaker(self, draw: Random) -> str:
        """Draw the name of a speaker."""
        return draw.choice((self.phrase(draw), draw.choice(SPEAKERS)))

    def with_phrases(self, template: str, draw: Random) -> str:
        """Put phrases into a template."""
        while "{w}" in template:
            template = template.replace("{w}", self.phrase(draw), 1)
        return template

    def free_statement(self, draw: Random) -> str:
        """Draw a statement of random words, separators and brackets."""
        ahead = self.phrase(draw) + " " if draw.random() < 0.6 else ""
        opener, value_opener = draw.choices(OPENERS, k=2)
        middle = draw.choice(SEPARATORS)
        if draw.random() < 0.6:
            middle += " " + self.phrase(draw) + draw.choice(SEPARATORS)
        if draw.random() < 0.8 or not middle:
            middle += " "
        closer, value_closer = (CLOSERS.get(x, x) for x in (opener, value_opener))
        behind = " " + self.phrase(draw) if draw.random() < 0.2 else ""
        end = draw.choice(ENDS) + draw.choice("\n\n ")
        return f"{ahead}{opener}{{n}}{closer}{middle}{value_opener}{{v}}{value_closer}{behind}{end}"

    def phrase(self, draw: Random) -> str:
        """Draw one or two words."""
        if draw.random() < LABELLED:
            return draw.choice(LABELS)
        words = [draw.choice(self.common) for _ in range(draw.choice((1, 1, 2)))]
        if draw.random() < 0.3:
            words[-1] = self.spelling(draw)(draw)
        text = draw.choice("  _").join(words)
        return draw.choice((str,) * 8 + (str.title, str.upper))(text)

    def spellings(self, count: int, draw: Random, plain: bool) -> list[str]:
        """Draw names or values for a record: plain ones, or others that often share parts."""
        if plain:
            return draw.choices(self.common, k=count)
        kinds = [self.spelling(draw) for _ in range(draw.choice((1, 2)))]
        pool = int(draw.choice((1.5, 3.0, 8.0)) * count**0.5) + 2 if len(kinds) > 1 else 2 * count
        parts = [[kind(draw) for _ in range(pool)] for kind in kinds]
        joint = draw.choice(("-", "-", "_", " ", ".", "", "/"))
        change = draw.choice((str, str, str, str.title, str.upper))
        return [change(joint.join(map(draw.choice, parts))) for _ in range(count)]

    def spelling(self, draw: Random) -> Callable[[Random], str]:
        """Draw a way of spelling."""
        return draw.choice(
            (
                lambda draw: draw.choice(self.words),
                lambda draw: draw.choice(TASK_WORDS),
                lambda draw: "".join(draw.choices(SYLLABLES, k=draw.randint(1, 3))),
                lambda draw: "".join(draw.choices(LETTERS, k=draw.randint(1, 5))),
                lambda draw: str(draw.randrange(10 ** draw.randint(1, 6))),
                lambda draw: str(draw.randrange(1000, 10000)),
                lambda draw: "".join(draw.choices("abcdefxyzktr0123456789", k=draw.randint(2, 5))),
                lambda draw: "".join(draw.choices(self.pieces, k=draw.randint(1, 4))),
            )
        )


def fill(template: str, name: str, draw: Random) -> str:
    """Put name and digits into a template."""
    while "{t}" in template:
        template = template.replace("{t}", str(draw.randrange(1000)), 1)
    return template.replace("{n}", name)
