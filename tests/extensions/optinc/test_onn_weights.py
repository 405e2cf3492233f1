"""Trained weights of an OptINC unit's network: their file, and that those we ship are right everywhere."""

from __future__ import annotations

import hashlib
import json
import tomllib
from importlib import resources

import numpy as np
import pytest
from typer.testing import CliRunner

from ringlight.experiments.record.version import ROOT
from ringlight.extensions.optinc.onn.command import app
from ringlight.extensions.optinc.unit.approximation import squares
from ringlight.extensions.optinc.unit.network import Network, table_of, wrong_of
from ringlight.extensions.optinc.unit.structure import CASES
from ringlight.extensions.optinc.unit.weights import note_of, pack, trained, unpack

CASE = "8bit_4"
PLACE = resources.files("ringlight.extensions.optinc.unit.weights")
FILE, NOTE = (PLACE / f"{CASE}.npz").read_bytes(), (PLACE / f"{CASE}.json").read_text()


def test_shipped_weights_are_right_on_every_input() -> None:
    network, note = trained(CASE)
    found = wrong_of(table_of(network, CASES[CASE].coding))
    assert (found.inputs, found.wrong, note.inputs, note.wrong) == (
        28_561,
        0,
        28_561,
        0,
    )
    assert found.worst <= 0.45
    # Another BLAS adds in another order.
    assert found.worst == pytest.approx(note.worst, abs=1e-3)


def test_shipped_layers_are_squares_of_a_scaled_orthogonal_matrix() -> None:
    network, _ = trained(CASE)
    structure = CASES[CASE]
    assert network.sizes == structure.sizes
    assert network.dtype == np.float32
    for matrix in network.weights:
        cut = squares(matrix.astype(float))
        rows = cut / np.linalg.norm(cut, axis=2, keepdims=True)
        assert (
            np.abs(rows @ rows.transpose(0, 2, 1) - np.eye(min(matrix.shape))).max()
            < 1e-5
        )


def test_note_is_of_the_file_and_says_how_it_was_made() -> None:
    note = json.loads(NOTE)
    assert note["sha256"] == hashlib.sha256(FILE).hexdigest()
    assert note["command"].startswith(
        "python -m ringlight.experiments.onn train --scenario 1 "
    )
    assert f"--seed {note['seed']}" in note["command"]
    assert f"--method {note['method']}" in note["command"]


def test_an_installed_package_has_them() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-data"
    ]
    assert set(data["ringlight.extensions.optinc.unit.weights"]) == {"*.npz", "*.json"}


def test_what_is_packed_is_unpacked() -> None:
    network, _ = trained(CASE)
    assert pack(network) == pack(network)
    again = unpack(pack(network))
    assert again.biases is not None
    for one, other in zip(
        network.weights + network.biases, again.weights + again.biases, strict=True
    ):
        assert np.array_equal(one, other)
    assert unpack(pack(Network(network.weights))).biases is None


def noted(file: bytes) -> str:
    return json.dumps(json.loads(NOTE) | {"sha256": hashlib.sha256(file).hexdigest()})


def test_weights_of_another_note_are_refused() -> None:
    changed = bytearray(FILE)
    changed[len(FILE) // 2] ^= 1
    with pytest.raises(
        ValueError,
        match=r"^the note beside it is of another file: sha256 \w{64}, this is \w{64}$",
    ):
        note_of(bytes(changed), NOTE)


@pytest.mark.parametrize("note", ["{", "[]", "{}", NOTE.replace('"seed"', '"seeds"')])
def test_what_is_no_note_is_named(note: str) -> None:
    with pytest.raises(ValueError, match=r"^the note beside it: "):
        note_of(FILE, note)


@pytest.mark.parametrize("file", [b"", b"no zip", FILE[:-100]])
def test_what_is_no_file_of_weights_is_named(file: bytes) -> None:
    with pytest.raises(ValueError, match=r"^no weights of a network: "):
        unpack(file)


def test_a_case_without_weights_is_named() -> None:
    with pytest.raises(ValueError, match="8bit_16: there are no trained weights"):
        trained("8bit_16")


def test_one_wrong_weight_is_found_by_the_check(tmp_path) -> None:
    network, _ = trained(CASE)
    worse = [matrix.copy() for matrix in network.weights]
    worse[2][:] *= 1.2
    file = pack(Network(tuple(worse), network.biases))
    (tmp_path / "w.npz").write_bytes(file)
    (tmp_path / "w.json").write_text(noted(file))
    done = CliRunner().invoke(app, ["check", str(tmp_path / "w.npz")])
    assert done.exit_code == 1
    right = int(done.output.split()[0])
    assert right < 28_561


def test_check_says_what_is_right() -> None:
    done = CliRunner().invoke(app, ["check", str(PLACE / f"{CASE}.npz")])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("28561 of 28561 inputs right, worst output 0.")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["check", "/nowhere/w.npz"], "onn: /nowhere/w.npz: No such file or directory"),
        (["train", "--out", "w.txt"], "onn: w.txt: weights are a .npz"),
        (["train", "--out", "/nowhere/w.npz"], "onn: /nowhere: no such folder"),
        (
            ["train", "--out", "w.npz", "--symbol-weights", "1,1"],
            "onn: --symbol-weights 1,1: 2 numbers, and there are 4 symbols",
        ),
        (
            ["train", "--out", "w.npz", "--symbol-weights", "1,a"],
            "onn: --symbol-weights 1,a: numbers with commas between them",
        ),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert done.output.splitlines() == [text]


def test_without_torch_training_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    done = CliRunner().invoke(app, ["train", "--out", str(tmp_path / "w.npz")])
    assert done.exit_code == 1
    assert done.output.splitlines() == [
        "onn: torch is needed to train, and is not installed: pip install 'ringlight[onn]'"
    ]
    assert not list(tmp_path.iterdir())
