"""Files of workloads are recognised by what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ringlight.fabric.extension import Extension, InstalledExtension
from ringlight.workloads.formats import reading
from ringlight.workloads.formats.contract import Format, Options, Setting
from ringlight.workloads.formats.reading import files_read, read_algorithm, read_any
from ringlight.workloads.graph import Collective
from ringlight.workloads.packed import pack
from tests.door import door
from tests.unit.workloads import canonical, many_kinds


def test_each_format_is_recognised(tmp_path: Path) -> None:
    for name in ("m.csv", "m.txt"):
        (tmp_path / name).write_text("0, 1\n2, 0\n")
        assert read_any([tmp_path / name]).ranks == 2
    (tmp_path / "w").write_bytes(pack(many_kinds()))
    assert canonical(read_any([tmp_path / "w"])) == canonical(many_kinds())


def refused(paths: list[Path], options: Options = Options()) -> str:
    with pytest.raises(ValueError) as caught:
        read_any(paths, options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_fits_no_format_is_told(tmp_path: Path) -> None:
    assert refused([]) == "there is no file to read"
    assert "gone.txt: No such file" in refused([tmp_path / "gone.txt"])
    (tmp_path / "notes.txt").write_text("hello\n")
    assert "no format fits; there are " in refused([tmp_path / "notes.txt"])
    assert "packed workloads and traffic matrices (CSV)" in refused(
        [tmp_path / "notes.txt"]
    )
    (tmp_path / "notes.md").write_text("# Notes\n\nhello\n")
    assert "no format fits" in refused([tmp_path / "notes.md"])
    (tmp_path / "m.csv").write_text("0, 1\n2, 0\n")
    assert "is a traffic matrix, which is one file" in refused(
        [tmp_path / "m.csv", tmp_path / "notes.txt"]
    )
    (tmp_path / "broken").write_bytes(pack(many_kinds())[:-9])
    assert f"{tmp_path}/broken: a packed workload: " in refused([tmp_path / "broken"])
    with pytest.raises(ValueError, match=r"notes\.md: this is no algorithm"):
        read_algorithm(tmp_path / "notes.md")


#: Files that begin with a bang, of which ``more`` says what is read besides.
BANG = Format(
    name="bang",
    title="bang",
    files="bangs",
    recognises=lambda path, beginning: beginning.startswith(b"!"),
    read=lambda paths, options: many_kinds(),
    read_also=lambda paths, options: [*paths, options.settings["more"]],
    settings=(Setting("more", "file", "More."),),
)


HASH = replace(
    BANG,
    name="hash",
    title="hash",
    recognises=lambda path, beginning: beginning.startswith(b"#!"),
    read=None,
    algorithm=lambda path: Collective("all-gather"),
)


@pytest.fixture
def others() -> Iterator[None]:
    """An extension with both formats, this module."""
    values = tuple(f"test_workload_files:{name}" for name in ("BANG", "HASH"))
    adds = InstalledExtension(Extension("bang", formats=values), "tests.unit")
    with door(adds, readers=(reading.formats, reading.settings)):
        yield


@pytest.mark.usefixtures("others")
def test_a_format_more_is_recognised_and_gets_its_settings(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("!")
    (tmp_path / "m.csv").write_text("0, 1\n2, 0\n")
    options = Options(settings={"more": tmp_path / "b"})
    assert canonical(read_any([tmp_path / "a"], options)) == canonical(many_kinds())
    assert files_read([tmp_path / "a"], options) == [tmp_path / "a", tmp_path / "b"]
    assert refused([tmp_path / "m.csv"], options).endswith(
        "a traffic matrix has no use for more"
    )


@pytest.mark.usefixtures("others")
def test_an_algorithm_is_no_workload_and_a_workload_no_algorithm(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").write_text("!")
    (tmp_path / "b").write_text("#!")
    assert read_algorithm(tmp_path / "b").kind == "all-gather"
    assert f"{tmp_path}/b: this is an algorithm (hash), no workload" in refused(
        [tmp_path / "b"]
    )
    with pytest.raises(ValueError, match="a: this is no algorithm; there are "):
        read_algorithm(tmp_path / "a")
