"""The reference of messages: each with its reason and remedy; a page for each package, by subject."""

from __future__ import annotations

import html
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tools.site.collecting import WARNING, Message
from tools.site.wording import PLACEHOLDER

REMEDIES = Path(__file__).with_name("remedies.toml")
"""Remedies of messages that have none in their text, by words of the messages."""
REASONS = Path(__file__).with_name("reasons.toml")
"""Reasons of messages that have none in their text: for each reason, words of the messages."""
FOLDER = "reference/messages"
INTRODUCTION = """\
Every error and every warning, by package: put what you got into the search above, or open the page of the package that
the traceback names. `<name>` stands for a value of your run. [Errors](../errors.md) lists the classes, for `except`;
[Troubleshooting](../../guides/troubleshooting.md) goes by symptom, also where nothing is printed.
"""
_VERBS = """
Accept Add Allocate Answer Ask Build Call Change Check Checkpoint Choose Clip Compute Construct Convert Copy Correct
Create Cut Define Derive Destroy Do Drop Free Get Give Implement Import Include Increase Install Join Keep Leave Let
Load Log Look Lower Make Map Move Name Offload Omit Open Pad Pass Pick Prepare Put Quote Raise Read Redistribute Reduce
Register Remove Rename Repeat Replace Restore Resume Return Run Save Say See Set Skip Start Switch Take Train Uninstall
Unset Untie Update Upgrade Use Wait Widen Write
"""
_ORDER = (
    r"(?:(?:For|With|Of|In|To) [^,.]+, |Elsewhere |Please |<\w+> ?)?"
    rf"(?:{'|'.join(_VERBS.split())}|Did you mean|Known|It knows)\b"
)
_IMPERATIVE = re.compile(_ORDER, re.IGNORECASE)
_CONSTRAINT = re.compile(r"\b(?:must (?!both)|needs? (?!no |it\b|quoting|a library))")
_WAY_OUT = re.compile(rf"[;:] {_ORDER}", re.IGNORECASE)


@dataclass
class Entry:
    """A message in the reference.

    Attributes:
        text: Its words, with placeholders.
        kinds: Classes of the errors with this message, or ``warning``.
        modules: Where it is made.
    """

    text: str
    kinds: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)

    @cached_property
    def sentences(self) -> list[str]:
        """The sentences of the message; text in backticks ends none."""
        codes: list[str] = re.findall("`[^`]*`", self.text)
        bare = re.sub("`[^`]*`", "\0", self.text)
        parts = re.split(r"(?<=[.?!])\s+(?=[A-Z<\0])", bare)
        rest = iter(codes)
        return [re.sub("\0", lambda _: next(rest), part) for part in parts]

    @cached_property
    def remedy(self) -> str:
        """The remedy in the message; empty if it has none."""
        orders = [index for index, each in enumerate(self.sentences) if _IMPERATIVE.match(each)]
        if orders:
            return " ".join(self.sentences[orders[0] :])
        for sentence in self.sentences:
            if _WAY_OUT.search(sentence):
                return sentence
        constrained = next((each for each in self.sentences if _CONSTRAINT.search(each)), "")
        return re.sub(r", got [^,]*$", ".", constrained)

    @property
    def problem(self) -> str:
        """The message without its remedy, if that is a separate sentence."""
        return (
            self.text
            if self.remedy in self.sentences[0] or not self.remedy
            else self.text.removesuffix(self.remedy).strip()
        )

    @property
    def anchor(self) -> str:
        words = re.findall(r"[a-z0-9]+", PLACEHOLDER.sub("", self.problem).lower())
        return "-".join(words[:9])


def entries(found: Iterable[Message]) -> dict[tuple[str, str], list[Entry]]:
    """Return the entries by package and subject; a message that is made at several places is one."""
    by_text: dict[tuple[str, str], Entry] = {}
    subjects: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for message in found:
        package, _, rest = message.module.partition(".")
        entry = by_text.get((package, message.text))
        if entry is None:
            entry = by_text[package, message.text] = Entry(message.text)
            subjects[package, (rest or package).split(".")[0]].append(entry)
        for values, value in ((entry.kinds, message.kind), (entry.modules, message.module)):
            if value not in values:
                values.append(value)
    return subjects


def remedies() -> dict[str, str]:
    """Return the remedies of messages without one, by words of the messages."""
    return tomllib.loads(REMEDIES.read_text(encoding="utf-8"))


def reasons() -> dict[str, str]:
    """Return the reasons of messages, by words of the messages."""
    table = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    return {words: reason for reason, several in table.items() for words in several}


def why(entry: Entry, curated: Mapping[str, str]) -> str:
    """Return what would go wrong without the message; empty where the table has nothing for it."""
    return next((text for words, text in curated.items() if words in entry.text), "")


def what_to_do(entry: Entry, curated: Mapping[str, str]) -> str:
    """Return the remedy; empty if neither the message nor the table has one."""
    return entry.remedy or next((text for words, text in curated.items() if words in entry.text), "")


def message_pages(found: Iterable[Message]) -> Iterator[tuple[str, str]]:
    """Yield page and Markdown of the overview and of each package."""
    curated, known = remedies(), reasons()
    pages: dict[str, list[str]] = defaultdict(list)
    numbers: dict[str, int] = defaultdict(int)
    for (package, subject), listed in sorted(entries(found).items()):
        lines = pages[package]
        anchors: dict[str, int] = defaultdict(int)
        lines.append(f"## {subject.strip('_').replace('_', ' ').capitalize()}\n")
        for entry in sorted(listed, key=lambda each: each.text.lower()):
            numbers[package] += 1
            anchors[entry.anchor] += 1
            suffix = f"-{anchors[entry.anchor]}" if anchors[entry.anchor] > 1 else ""
            lines += _lines(
                entry, f"{subject}-{entry.anchor}{suffix}", what_to_do(entry, curated), why(entry, known)
            )
    overview = ["# Messages\n", INTRODUCTION, "| package | messages |\n|-|-|"]
    for package, lines in pages.items():
        name = package.replace("_", "-")
        overview.append(f"| [{name}]({name}.md) | {numbers[package]} |")
        yield f"{FOLDER}/{name}.md", "\n".join([f"# Messages of {name}\n", *lines])
    yield f"{FOLDER}/index.md", "\n".join(overview) + "\n"


def _lines(entry: Entry, anchor: str, remedy: str, reason: str) -> Iterator[str]:
    kinds = " and ".join("a warning" if kind == WARNING else f"`{kind}`" for kind in entry.kinds)
    yield f"##### {plain(entry.problem)} {{ #{anchor} }}\n"
    if reason:
        yield f"**Why.** {plain(reason)}\n"
    yield f"**What to do.** {plain(remedy)}\n"
    yield f"*{kinds[0].upper()}{kinds[1:]}* from {', '.join(f'`{module}`' for module in entry.modules)}.\n"


def plain(text: str) -> str:
    """Return a text as Markdown that shows it verbatim, except for text in backticks."""
    parts = re.split("(`[^`]*`)", text)
    return "".join(part if index % 2 else _escaped(part) for index, part in enumerate(parts))


def _escaped(text: str) -> str:
    return re.sub(r"([\\*_\[\]#{}`])", r"\\\1", html.escape(text, quote=False)).replace("|", "&#124;")
