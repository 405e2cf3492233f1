"""A copy of the source tree without some extensions, and commands run in the copy.

    python -m tests.without                        without all extensions: ruff, mypy, the core's unit tests
    python -m tests.without NAME …                 without these and those that require them
    python -m tests.without NAME … -- pytest …     another ``python -m`` command in that copy
    python -m tests.without --each                 each extension is missing while each other one is tested

With an extension go its folder, its tests, and what ``tests/extensions/NAME/files.txt`` lists: its scenarios,
golden files and pages, a glob each line. Links of other pages to what is gone become words, and lines of code
that call its commands go.

A copy belongs to the process that made it, which removes it; the next one removes that of a killed process.
"""

from __future__ import annotations

import fcntl
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import typer

from ringlight.experiments.cli.suite import OF_ALL
from ringlight.fabric.extension import extensions
from ringlight.testbed.process_start import dying_with_starter

ROOT = Path(__file__).resolve().parents[1]
_OF_EXTENSIONS = Path("tests/extensions")
#: How folders of copies begin.
_PREFIX = "ringlight-without-"
#: File with an extension's globs, in the folder of its tests.
_LIST = "files.txt"
_STEPS = (
    ("ruff", "check", "."),
    ("mypy",),
    # The plug-in of this tree is an extension's.
    (
        "pytest",
        "-p",
        "no:ringlight",
        "-q",
        "tests/unit",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
    ),
)

#: Sets of extensions that are drawn before the best of them is taken.
_DRAWN_SETS = 1000


def ours() -> tuple[str, ...]:
    """Return the names of the extensions that are folders of this tree."""
    return tuple(
        sorted(path.parent.name for path in (ROOT / "extensions").glob("*/__init__.py"))
    )


def with_dependents(names: Iterable[str]) -> set[str]:
    """Return extensions and those that require them, directly or not.

    Raises ValueError for a name that no extension of this tree has.
    """
    gone = set(names)
    if unknown := gone.difference(ours()):
        raise ValueError(
            f"there is no extension {min(unknown)}; there are {', '.join(ours())}"
        )
    # Each extension comes after those that it requires.
    for installed in extensions():
        if gone.intersection(installed.extension.requires):
            gone.add(installed.extension.name)
    return gone


def rounds(
    names: Collection[str], dependents: Callable[[Iterable[str]], set[str]]
) -> list[frozenset[str]]:
    """Return few sets of extensions such that each extension is in a set that leaves each other one out.

    An extension is tested without another one where the second is in the set and the first is not. Pairs
    of which the first requires the second, by ``dependents``, are never apart. Some ten sets take the place
    of a round for each of thirty extensions.
    """
    draw = random.Random(0)
    apart = {
        (gone, tested) for gone in names for tested in set(names) - dependents([gone])
    }
    chosen = list[frozenset[str]]()
    while apart:
        drawn = [
            frozenset(
                dependents(draw.sample(sorted(names), draw.randint(1, len(names))))
            )
            for _ in range(_DRAWN_SETS)
        ]
        # The dependents of one extension, so that each turn separates at least a pair.
        drawn.append(frozenset(dependents([min(apart)[0]])))
        best = max(drawn, key=lambda gone: len(_separated(apart, gone)))
        apart -= _separated(apart, best)
        chosen.append(best)
    return chosen


def _separated(
    pairs: Collection[tuple[str, str]], gone: Collection[str]
) -> set[tuple[str, str]]:
    """Return the pairs whose first extension is gone and whose second one is not."""
    return {
        (missing, tested)
        for missing, tested in pairs
        if missing in gone and tested not in gone
    }


def each() -> int:
    """Test each extension without each other one, and what walks through all that is there. Print a table.

    Return 0 if all is green, else 1. Extensions are missing several at a time (see ``rounds``).
    """
    failed = dict[frozenset[str], list[str]]()
    sets = rounds(ours(), with_dependents)
    of_all = [f"tests/unit/test_{name}.py" for name in OF_ALL]
    for number, gone in enumerate(sets, 1):
        print(f"\n{number} of {len(sets)}, without", *sorted(gone), flush=True)  # noqa: T201
        plugin = () if "bench" not in gone else ("-p", "no:ringlight")
        tests = ("tests/extensions", "--ignore-glob=*/integration")
        steps = (
            ("ruff", "check", "."),
            # One cache for all rounds: most files are the same.
            ("mypy", "--cache-dir", str(ROOT / "build/mypy-without")),
            ("pytest", *plugin, "-q", *tests, *of_all, "-n", "2", "--dist", "loadfile"),
        )
        with copied(gone) as folder:
            existing = [
                tuple(
                    word
                    for word in step
                    if word not in of_all or (folder / word).exists()
                )
                for step in steps
            ]
            failed[gone] = [step[0] for step in existing if run(folder, step)]
    for gone, programs in failed.items():
        print(" ".join(programs) or "green", "| without", *sorted(gone))  # noqa: T201
    return 1 if any(failed.values()) else 0


def files_of(name: str) -> Iterator[Path]:
    """Yield the files of an extension outside of its folders. Raises ValueError for a glob without files."""
    listed = ROOT / _OF_EXTENSIONS / name / _LIST
    for glob in listed.read_text().split() if listed.exists() else ():
        files = [path.relative_to(ROOT) for path in ROOT.glob(glob)]
        if not files:
            raise ValueError(f"{listed.relative_to(ROOT)}: no file is {glob}")
        yield from files


def commands_of(names: Collection[str]) -> list[str]:
    """Return the names of the commands that some extensions add to the program."""
    app = typer.Typer()
    for installed in extensions():
        if installed.extension.name in names and (
            value := installed.extension.commands
        ):
            installed.load(value)(app)
    commands = [
        command.name or command.callback.__name__.replace("_", "-")
        for command in app.registered_commands
        if command.callback is not None
    ]
    return commands + [group.name for group in app.registered_groups if group.name]


def _calls_gone(line: str, folder: Path, commands: Collection[str]) -> bool:
    """Return whether a line of code calls a command that is gone, or names a file that is."""
    call = re.match(r" {4}(?:sudo )?(?:\./)?ringlight (\S+)", line)
    if call is None:
        return False
    files = re.findall(r"(?:docs|scenarios|extensions)/\S+\.\w+", line)
    return call[1] in commands or any(
        (ROOT / file).exists() and not (folder / file).exists() for file in files
    )


def without_gone(page: Path, folder: Path, commands: Collection[str]) -> str:
    """Return a page's text without lines of code that call ``commands`` or name files that are not in the
    ``folder`` of the copy, and with the words of a link in place of one to a file that is not there.
    """
    text = "".join(
        line
        for line in page.read_text().splitlines(keepends=True)
        if not _calls_gone(line, folder, commands)
    )

    def kept(match: re.Match[str]) -> str:
        words, target = match.groups()
        outside = not target or "://" in target
        return match[0] if outside or (page.parent / target).exists() else words

    return re.sub(r"\[([^\]]*)\]\(([^)#\s]*)[^)]*\)", kept, text)


@contextmanager
def owned_folder() -> Iterator[Path]:
    """Yield a new folder, which is removed at the end, and those of processes that have ended before.

    The process holds a lock on it for as long as it lives. Folders without a lock are left over, unless they
    are empty: one that was just made is locked before anything is in it.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # Another user's cannot be opened or removed, and another process may be removing it.
        with suppress(OSError), _locked(left):
            if any(left.iterdir()):
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, _locked(Path(name)):
        yield Path(name)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock. Raises BlockingIOError if another process does."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def copied(names: Collection[str]) -> Iterator[Path]:
    """Yield a copy of the tree without these extensions, which is removed at the end."""
    gone = {Path("extensions", name) for name in names} | {
        _OF_EXTENSIONS / name for name in names
    }
    gone.update(path for name in names for path in files_of(name))
    with owned_folder() as folder:
        # Some tests ask git what belongs to the tree. It knows so without a repository there, too.
        git = ["git", f"--git-dir={folder / '.git'}"]
        subprocess.run([*git, "init", "-q"], cwd=folder, check=True)
        listing = [
            *git,
            f"--work-tree={ROOT}",
            "ls-files",
            "-z",
            "--others",
            "--exclude-standard",
        ]
        listed = subprocess.run(
            listing, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        for path in map(Path, filter(None, listed.split("\0"))):
            if gone.isdisjoint((path, *path.parents)):
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, target, follow_symlinks=False)
        gone_commands = commands_of(names)
        for page in (
            page
            for place in (".", "docs", "docs/site", "scenarios")
            for page in (folder / place).glob("*.md")
        ):
            page.write_text(without_gone(page, folder, gone_commands))
        subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
        yield folder


def run(folder: Path, words: Collection[str]) -> int:
    """Run ``python -m`` with these words in a copy. Return its exit code."""
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}"}
    print("$", *words, flush=True)  # noqa: T201
    # By force, as nothing else ends pytest for certain.
    command = [*dying_with_starter(signal.SIGKILL), sys.executable, "-m", *words]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def main(words: list[str]) -> int:
    """Run the command line. Return the exit code of the first step that fails, else 0."""
    if words == ["--each"]:
        return each()
    names, command = words, list[str]()
    if "--" in words:
        names, command = words[: words.index("--")], words[words.index("--") + 1 :]
    gone = with_dependents(names or ours())
    print("without", *sorted(gone), flush=True)  # noqa: T201
    with copied(gone) as folder:
        for step in [command] if command else _STEPS:
            if code := run(folder, step):
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
