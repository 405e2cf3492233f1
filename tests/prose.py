"""Count how the pages read: clauses and words that stop a first-time reader.

    python -m tests.house prose                          # the counts, and their limits
    python -m tests.house prose --list where             # the places of one count
    python -m tests.house prose --list where docs/rest.md

Pages are README.md, CONTRIBUTING.md, CHANGELOG.md and docs/*.md. Code is left out, wrapped
lines are joined, and each paragraph, list item and table cell is read by itself.
``test_architecture`` holds the counts to ``tests/data/house.json``, where they only fall.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ringlight.containers.image import ROOT

#: A sentence has at most so many words; inline code is one word.
LONGEST_SENTENCE = 35
#: Limits of the sum over all pages.
LIMITS = {"what": 60, "where": 0, "of": 0, "long": 20, "private": 0}


@dataclass(frozen=True)
class Passage:
    """A paragraph, list item or table cell: where it begins, and its text on one line."""

    page: str
    line: int
    text: str


def pages() -> list[Path]:
    """Return the pages that are counted, sorted."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [
        *(path for path in top if path.exists()),
        *sorted((ROOT / "docs").glob("*.md")),
    ]


_FENCE = re.compile(r"\s*(```|~~~)")
_NEW = re.compile(r"^(\s*([-*+]|\d+[.)])\s+|#+\s+|>\s?|\|)")
_RULE = re.compile(r"[\s|:=-]+$")
_CELL = re.compile(r"(?<!\\)\|")


def passages(page: str, text: str) -> Iterator[Passage]:
    """Yield the passages of a Markdown text, without code, comments and addresses of links."""
    text = re.sub(
        r"<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.S
    )
    begun, words = 0, list[str]()
    fenced = ended = False

    def close() -> Iterator[Passage]:
        if words:
            yield Passage(page, begun, plain(" ".join(words)))
            words.clear()

    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
            yield from close()
            continue
        # A list item's further paragraphs are indented, too, but by less than code below the item.
        code = line.startswith(("    ", "\t")) and not words
        if fenced or code or not line.strip():
            yield from close()
            continue
        if ended or _NEW.match(line):
            yield from close()
        ended = line.lstrip().startswith(("|", "#"))
        if line.lstrip().startswith("|"):
            for cell in _CELL.split(line.strip())[1:-1]:
                if not _RULE.fullmatch(cell):
                    yield Passage(page, number, plain(cell))
            continue
        if not words:
            begun = number
        words.append(_NEW.sub("", line, count=1).strip())
    yield from close()


def plain(text: str) -> str:
    """Return a passage as it is read: code as ``CODE``, links and pictures as their text, no marks."""
    text = re.sub(r"(`+)(?!`).+?\1", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]+>|https?://\S+", " ", text)
    return " ".join(re.sub(r"(?<!\w)[*_]+|[*_]+(?!\w)", "", text).split())


def sentences(text: str) -> list[str]:
    """Return the sentences of a passage; abbreviations and versions do not end one."""
    parts = re.split(
        r"(?<!e\.g)(?<!i\.e)(?<!\bal)(?<!vs)(?<!Fig)[.!?]\)?\"?\s+(?=[\"(]?[A-Z0-9])",
        text,
    )
    return [part for part in parts if part.strip()]


def _what(text: str) -> Iterator[str]:
    """Yield *what* and *whatever* as nouns; questions, and *so-what*, are none."""
    for sentence in re.split(r"(?<=[.!?])\s", text):
        if not sentence.rstrip('*")').endswith("?"):
            yield from _matches(r"(?i)(?<![-\"'])\bwhat(ever)?\b(?!-if)", sentence)


#: After these words, *where* is a place or asks for a place.
_PLACE = (
    r"(places?|points?|positions?|folders?|director(y|ies)|files?|pages?|tables?|columns?|rows?|lines?|sections?|paths?"
    r"|ports?|racks?|switch(es)?|machines?|hosts?|networks?|namespaces?|address(es)?|sites?|offsets?|lists?|environment"
    r"|from|to|by|on|exactly|is|are|was|be|into|show[sn]?|knows?|find|found|sees?|says?|records?|names?"
    r"|remembers?|decides?|chooses?|determines?|tells?|notes?|reports?|prints?|describes?|returns?|looks?|asks?"
    r"|goes|go|stays?|continues?|begins?|starts?|resumes?|depends on)"
)


def _where(text: str) -> Iterator[str]:
    """Yield *where* that stands for if, when or for; a place, or a question for a place, does not count."""
    yield from _matches(
        r"(?i)(?<![\w-])where\b(?=\s*\w)", text, unless=rf"(?i)(^|\b{_PLACE},?\s)$"
    )
    yield from _matches(r"^Where\b(?=.*[.;,])(?!.*\?$)", text)


_SOME = r"(\d|one|two|three|four|five|six|seven|eight|nine|ten|none|all|most|some|half)"


def _of(text: str) -> Iterator[str]:
    """Yield *of* before the noun that it belongs to: at the beginning of a sentence or a clause.

    "Of 12 runs, three failed" and "Of these, three failed" are plain English, and do not count.
    """
    plain_english = (
        rf"course\b|(the |these |those )?[\d,]+ [^,;.]*, |(these|those),? {_SOME}"
    )
    yield from _matches(rf"(?:^|(?<=[.!?]\s))Of (?!{plain_english})", text)
    noun = r"(?:the|a|an|its|their|each|all|those|these|this|every|both|\d+|CODE)\s"
    clause = (
        rf"of (?:{noun})?[\w' -]+?,? (?:the|a|an|only|its|their|there|each|all|no|one|is|are|was|were|it|they|we"
        r"|some|half|most|much|\d+) "
    )
    yield from _matches(rf"[;:(] ?{clause}", text)
    # After another "of" in the sentence, "and of" goes on with its list.
    yield from _matches(
        rf",? (?:and|but|or|so) {clause}", text, unless=r"\bof\b[^.;:]*$"
    )


def _long(text: str) -> Iterator[str]:
    """Yield the sentences of more than :data:`LONGEST_SENTENCE` words."""
    for sentence in sentences(text):
        if len(re.findall(r"[\w%][\w.,%/'’°×·+-]*", sentence)) > LONGEST_SENTENCE:
            yield sentence


def _matches(pattern: str, text: str, unless: str | None = None) -> Iterator[str]:
    for found in re.finditer(pattern, text):
        before = text[: found.start()]
        if unless is None or not re.search(unless, before):
            yield text[max(0, found.start() - 40) : found.end() + 60]


#: Words that only this project's authors understand, and plain ones.
PRIVATE = {
    r"(?:(?:\b(?:for|has|have|with|the|by)|:)\s|^)[Hh]ands\b(?! (?:over|out|on|back)\b)": "controls; interactive",
    r"\b[Dd]oors?\b": "interfaces",
    r"\b[Rr]ooms\b|\b(?:a|the|each|every|own|other) room\b|^room$": "packages",
    r"\b[Ll]ight (?:that |which )?(?:stands|stood|belongs|is divided|for a job)\b": "lightpaths, circuits",
    r"\b[Ss]tanding\b(?! (?:alarm|wave))": "evidence class",
    r"\b(?:dis)?honest(?:y|ly)?\b": "accurate",
    r"\b(?:calls?|judges?) (?:itself|themselves)\b": "is rated",
    r"\bleft to others\b": "controlled by your own application",
    r"\b[Mm]end(?:s|ed|ing)?\b|\bput right\b": "repaired, restored; fixed",
    r"\bfound to differ\b": "differs",
    r"\b(?:its|the|a|this|no|every|each|whose|of|their) bars?\b(?! (?:chart|plot|graph))": "target, limit",
    r"\b(?:is|are|was|were|or) struck\b": "removed, affected",
    r"\btold apart\b": "distinguished; resolution",
    r"\bmachines? (?:that )?carr(?:y|ies)\b": "can emulate",
    r"\bas (?:real|emulated)\b(?! (?:as|time|rate|bit))": "in real units; in emulated units",
    r"\bpeople have\b": "common",
    r"\bhardest of\b": "largest",
    r"\ba receiver reads\b": "receiver's sensitivity",
    r"^wanted$": "target",
    r"\b\d+ turns\b|\bturns at (?:each|its)\b": "round-robin queues",
    r"\bconnections? (?:is|are) cold\b|\bcold connections?\b": "new, in slow start",
}


def _private(text: str) -> Iterator[str]:
    """Yield the private words of :data:`PRIVATE`, and a word to write in their place."""
    for pattern, plainer in PRIVATE.items():
        for found in _matches(pattern, text):
            yield f"{found}  [{plainer}]"


COUNTS: dict[str, Callable[[str], Iterator[str]]] = {
    "what": _what,
    "where": _where,
    "of": _of,
    "long": _long,
    "private": _private,
}


def places(count: str, path: Path) -> list[str]:
    """Return the places of a count on a page, as ``page:line: words``."""
    name = str(path.relative_to(ROOT))
    return [
        f"{name}:{passage.line}: {found}"
        for passage in passages(name, path.read_text())
        for found in COUNTS[count](passage.text)
    ]


def counted() -> dict[str, dict[str, int]]:
    """Return each count by page; pages with none are left out."""
    found = {
        count: {
            str(path.relative_to(ROOT)): len(places(count, path)) for path in pages()
        }
        for count in COUNTS
    }
    return {
        count: {page: n for page, n in by.items() if n} for count, by in found.items()
    }


def main(words: list[str]) -> None:
    """Print the counts, or with ``--list [COUNT] [PAGE …]`` the places."""
    if words[:1] == ["--list"]:
        names = [word for word in words[1:] if word in COUNTS] or list(COUNTS)
        only = [word for word in words[1:] if word not in COUNTS]
        for count in names:
            for path in pages():
                if not only or str(path.relative_to(ROOT)) in only:
                    for place in places(count, path):
                        print(f"{count}: {place}")  # noqa: T201
        return
    for count, by in counted().items():
        print(count, sum(by.values()), "limit", LIMITS[count])  # noqa: T201
