"""A training ends with the same bits whatever BLAS, its threads and the CPU's vectors are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.containers.worker.arithmetic import exp, log, product, tanh, total

ROOT = Path(__file__).resolve().parents[2]
SPEC = {
    "job": "x", "rank": 0, "world_size": 4, "peers": ["10.0.0.1"] * 4, "collective": "halving-doubling",
    "gradient_bytes": 40_004, "iterations": 20, "seed": 7, "learning_rate": 0.2,
}  # fmt: skip
#: What any machine must end with; a change of the model changes it.
OUTCOME = {
    "parameters_sha256": "abc6280bfb2c630246497536172c0787e8d67300e30473fd1e2ee3e098d42db7",
    "loss_first": 2.4240470501759726,
    "loss_last": 1.5641683906021409,
    "accuracy": 0.6464646464646465,
}
#: What OpenBLAS and numpy read before they choose how to add.
CHOICES = ("OPENBLAS_", "GOTO_", "OMP_", "NPY_")


def environments() -> list[dict[str, str]]:
    """Thread counts, kernels of OpenBLAS that this CPU can run, and numpy without its widest vectors."""
    found = [{}, *({"OPENBLAS_NUM_THREADS": str(threads)} for threads in (1, 2, 4))]
    words = Path("/proc/cpuinfo").read_text().split()
    kernels = {
        "Prescott": {"pni"},
        "Haswell": {"avx2", "fma"},
        "Zen": {"avx2", "fma"},
        "SkylakeX": {"avx512f"},
    }
    found += [
        {"OPENBLAS_CORETYPE": name}
        for name, needs in kernels.items()
        if needs <= set(words)
    ]
    if {"avx2", "fma"} <= set(words):
        found.append({"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"})
    return found


def test_every_process_ends_with_the_same_bits(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(SPEC))
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(CHOICES)
    }
    found = {}
    for chosen in environments():
        command = [
            sys.executable,
            "-m",
            "ringlight.containers.worker.reference",
            str(spec),
        ]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=plain | chosen,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        found[json.dumps(chosen)] = json.loads(done.stdout)
    assert found == dict.fromkeys(found, OUTCOME)


@given(st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_a_total_is_a_sum(count: int, seed: int) -> None:
    parts = (
        np.random.RandomState(seed).randint(-1000, 1000, (count, 3)).astype(np.float32)
    )
    kept = parts.copy()
    assert total(parts).tolist() == parts.sum(axis=0).tolist()
    assert np.array_equal(parts, kept)


@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(0, 2**32 - 1),
)
def test_a_product_is_a_matrix_product(n: int, k: int, m: int, seed: int) -> None:
    random = np.random.RandomState(seed)
    left, right = random.randint(-99, 99, (n, k)), random.randint(-99, 99, (k, m))
    assert np.array_equal(
        product(left.astype(np.float32), right.astype(np.float32)), left @ right
    )


def test_series_are_what_they_are_called() -> None:
    x = np.linspace(-700, 700, 10_001)
    assert exp(x) == pytest.approx(np.exp(x), rel=1e-13)
    assert tanh(x / 100) == pytest.approx(np.tanh(x / 100), abs=1e-15)
    positive = np.exp(x)
    assert log(positive) == pytest.approx(x, rel=1e-15, abs=1e-15)
    assert exp(np.array([-800.0, 0.0])).tolist() == [0.0, 1.0]
