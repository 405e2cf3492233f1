"""Placed workloads: within the window, all bytes once, run to the end, and as long as closed forms say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.models import placement
from ringlight.extensions.models.catalogue import MODELS
from ringlight.extensions.models.layers import Model, Vision, forward_flops, parameters
from ringlight.extensions.models.operators import Operator, operators
from ringlight.extensions.models.parallelism import generate
from ringlight.extensions.models.placement import (
    AUTHORS,
    authors_all_reduce_s,
    place,
    placed_workload,
    ways,
    widest_window,
)
from ringlight.extensions.models.settings import OPTIMISER_BYTES, Parallel, Training
from ringlight.testbed.simulation.networks import IdealNetwork
from ringlight.testbed.simulation.workload import WorkloadResult, simulate_workload
from ringlight.workloads.devices import DEVICES
from ringlight.workloads.graph import Kind, Workload
from ringlight.workloads.graph_checks import check
from ringlight.workloads.summary import summary
from ringlight.workloads.traffic import traffic
from tests.extensions.models.test_workload_generated import sent, small

DEVICE = DEVICES["a100"]
#: So short that everything with FLOPs is in as many pieces as there are GPUs.
TINY_S = 1e-15


def run(
    workload: Workload, rate_bps: float = 1e12, how: str = "exact"
) -> WorkloadResult:
    """Raises ValueError where somebody waits for ever."""
    gpus = [f"g{rank}" for rank in range(workload.ranks)]
    return simulate_workload(IdealNetwork(gpus, rate_bps), gpus, workload, fidelity=how)  # type: ignore[arg-type]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Operator], list[int], list[float]]:
    """Operators in any order of taking, their pieces and the seconds of each."""
    count = draw(st.integers(1, 14))
    found = []
    for number in range(count):
        after = (
            draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        )
        found.append(Operator(str(number), 1.0, 64, 64, tuple(sorted(after))))
    pieces = draw(st.lists(st.integers(1, 8), min_size=count, max_size=count))
    seconds = draw(
        st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=count, max_size=count)
    )
    return found, pieces, seconds


@given(graph=graphs(), gpus=st.integers(1, 24), window=st.integers(1, 24))
@settings(max_examples=200, deadline=None)
def test_pieces_are_within_the_window_of_all_that_they_take(
    graph: tuple[list[Operator], list[int], list[float]], gpus: int, window: int
) -> None:
    every, pieces, seconds = graph
    found = place(every, pieces, seconds, gpus, window)
    assert [len(mine) for mine in found] == pieces
    for one, mine in zip(every, found, strict=True):
        assert set(mine) <= set(range(gpus))
        taken = [gpu for k in one.after for gpu in found[k]]
        reached = [
            g for g in range(gpus) if all(abs(g - other) < window for other in taken)
        ]
        assert set(mine) <= set(reached or [max(taken)])


def test_the_gpu_that_is_free_first_is_taken() -> None:
    first, second, third = (
        Operator(str(k), 1.0, 8, 8, after) for k, after in enumerate([(), (0,), (0,)])
    )
    # Two pieces on 0 and 1; one long on 2; then 3 and the first that is free again.
    assert place([first, second, third], [2, 1, 2], [1.0, 9.0, 1.0], 4, 4) == (
        (0, 1),
        (2,),
        (3, 0),
    )
    # Pieces that take no time are on GPUs of their own, too.
    assert place([first], [4], [0.0], 4, 4) == ((0, 1, 2, 3),)
    # Only 0 and 1 are less than 2 away from both.
    assert place([first, second, third], [2, 1, 2], [1.0, 9.0, 1.0], 4, 2) == (
        (0, 1),
        (0,),
        (1, 1),
    )


@given(
    source=st.integers(0, 40),
    destinations=st.sets(st.integers(0, 40), max_size=9),
    reach=st.integers(1, 50),
)
def test_everybody_has_it_once_and_before_he_hands_it_on(
    source: int, destinations: set[int], reach: int
) -> None:
    have = {source}
    for tail, head in ways(source, destinations, reach):
        assert tail in have
        assert head not in have
        assert 0 < abs(head - tail) <= reach
        have.add(head)
    assert destinations <= have
    if reach >= 40:
        assert have == destinations | {source}


def few_blocks() -> Vision:
    """The beginning of ResNet-50: bottlenecks with and without a convolution on the way round."""
    model = MODELS["resnet50"]
    assert isinstance(model, Vision)
    return replace(model, convolutions=model.convolutions[:8])


MODEL = st.sampled_from(
    [small("gpt2-medium", 2), small("transformer-big", 1), few_blocks()]
)


@given(
    model=MODEL, dp=st.integers(1, 3), mp=st.integers(1, 7), window=st.integers(1, 8),
    per_replica=st.integers(1, 2), data=st.data(),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_any_placed_workload_keeps_its_window_and_runs_to_its_end(
    model: Model, dp: int, mp: int, window: int, per_replica: int, data: st.DataObject
) -> None:
    sequence = 0 if isinstance(model, Vision) else 8
    gradient_bytes = data.draw(st.sampled_from([None, 123_457]))
    all_reduce = data.draw(st.booleans())
    workload = placed_workload(
        model, dp, mp, dp * per_replica, window, DEVICE, gradient_bytes=gradient_bytes, all_reduce=all_reduce,
        takes=data.draw(st.sampled_from(["whole", "part"])), sequence=sequence,
        quantum_s=data.draw(st.sampled_from([TINY_S, 1e-8, 1e-6])),
    )  # fmt: skip
    assert check(workload) is workload
    assert (workload.ranks, len(workload.programs)) == (dp * mp, mp)
    _check_window(workload, mp, window)
    # Nothing is lost by dividing: computation, gradients, parameters.
    found = summary(workload)
    assert found.flops == pytest.approx(
        3 * dp * per_replica * forward_flops(model, sequence), rel=1e-9
    )
    size = 4 * parameters(model) if gradient_bytes is None else gradient_bytes
    reduced = 2 * (dp - 1) * size if all_reduce else 0
    assert (
        sum(
            part.sent for (purpose, _), part in found.traffic.items() if purpose == "dp"
        )
        == reduced
    )
    assert _memory_bytes(workload) == dp * OPTIMISER_BYTES * parameters(model)
    # Both ways of simulating come to the end, and everything that is sent arrives.
    for how in ("exact", "classes"):
        result = run(workload, how=how)
        assert np.isfinite(result.end_s).all()
        assert result.link_bytes.sum() == pytest.approx(
            2 * sum(sent(workload).values()), rel=1e-6
        )


def _check_window(workload: Workload, mp: int, window: int) -> None:
    """Messages stay within a replica and the window; collectives are between equal positions."""
    for rank, number in enumerate(workload.program_of.tolist()):
        program = workload.programs[number]
        messages = np.isin(program.kind, (Kind.SEND, Kind.RECEIVE))
        peers = np.unique(workload.peers[rank, program.slot[messages]])
        assert (np.abs(peers - rank) < window).all()
        assert (peers // mp == rank // mp).all()
        assert rank not in peers
    assert all((group % mp == group[0] % mp).all() for group in workload.groups)


def _memory_bytes(workload: Workload) -> int:
    each = [int(p.bytes[p.kind == Kind.MEMORY].sum()) for p in workload.programs]
    return sum(each[number] for number in workload.program_of.tolist())


@pytest.mark.parametrize("takes", ["whole", "part"])
@pytest.mark.parametrize("mp", [2, 4, 8])
def test_what_is_exchanged_is_every_output_there_and_its_gradient_back(
    mp: int, takes: str
) -> None:
    """All pieces on all GPUs: each has to get what the others have, or its part of that."""
    model = MODELS["resnet50"]
    workload = placed_workload(
        model, 3, mp, 24, mp, DEVICE, takes=takes, quantum_s=TINY_S, all_reduce=False  # type: ignore[arg-type]
    )  # fmt: skip
    outputs = sum(one.output_bytes for one in operators(model, 8)[:-1])
    copies = mp - 1 if takes == "whole" else (mp - 1) / mp
    assert sent(workload) == {"mp": 3 * 2 * copies * outputs}


@pytest.mark.parametrize("window", [2, 4])
def test_what_is_handed_on_by_others_is_within_the_window(window: int) -> None:
    """Eight blocks get away from the embedding, beside which the output is."""
    model = small("gpt2-medium", 8)
    workload = placed_workload(
        model, 2, 12, 8, window, DEVICE, sequence=8, quantum_s=TINY_S
    )
    _check_window(workload, 12, window)
    graph, most = operators(model, 4, sequence=8), (window + 1) // 2
    placed = place(graph, [most] * len(graph), [one.flops for one in graph], 12, window)
    assert min(abs(gpu - other) for gpu in placed[-1] for other in placed[-2]) >= window
    matrix = traffic(workload)[:12, :12]
    assert (matrix == matrix.T).all()  # gradients go back the same way
    for how in ("exact", "classes"):
        assert np.isfinite(run(workload, how=how).end_s).all()


def test_one_gpu_a_replica_is_data_parallelism() -> None:
    """Operation for operation what is generated for dp alone; VGG's operators are its layers."""
    training = Training(
        micro_batch=8,
        element_bytes=4,
        gradient_bytes=4,
        algorithms={"all-reduce": "ring"},
    )
    expected = generate(MODELS["vgg16"], Parallel(dp=4), training, DEVICE)
    found = placed_workload(MODELS["vgg16"], 4, 1, 32, 16, DEVICE)
    (mine,), (theirs,) = found.programs, expected.programs
    for column in ("kind", "seconds", "bytes", "after_offsets", "after"):
        np.testing.assert_array_equal(
            getattr(mine, column), getattr(theirs, column), column
        )
    assert run(found).total_s == run(expected).total_s


@pytest.mark.parametrize("name", ["resnet50", "transformer-big", "gpt2-medium"])
def test_one_gpu_a_replica_takes_as_long_as_data_parallelism(name: str) -> None:
    training = Training(
        micro_batch=8,
        element_bytes=4,
        gradient_bytes=4,
        algorithms={"all-reduce": "ring"},
    )
    expected = run(
        generate(MODELS[name], Parallel(dp=128), training, DEVICE), how="classes"
    ).total_s
    found = run(
        placed_workload(MODELS[name], 128, 1, 1024, 16, DEVICE), how="classes"
    ).total_s
    # Operators are finer than layers, so buckets are closed a little earlier.
    assert found == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("mp", [1, 4])
def test_one_bucket_is_reduced_behind_the_backward_pass(mp: int) -> None:
    """So few bytes that they fill no bucket: computation, exchange, one ring, the optimiser."""
    model, dp, size = MODELS["vgg16"], 16, 1_000_000
    workload = placed_workload(
        model, dp, mp, 64, 16, DEVICE, gradient_bytes=mp * size, quantum_s=TINY_S
    )  # fmt: skip
    compute_s = 3 * forward_flops(model) * 4 / mp / DEVICE.flops_per_s(4)
    updated_s = OPTIMISER_BYTES * parameters(model) / mp / DEVICE.memory_bytes_per_s
    outputs = sum(one.output_bytes for one in operators(model, 4)[:-1])
    sent_each = 2 * (mp - 1) / mp * outputs + 2 * (dp - 1) / dp * size
    assert run(workload, 1e11).total_s == pytest.approx(
        compute_s + updated_s + sent_each * 8 / 1e11, rel=1e-6
    )


@pytest.mark.parametrize("rate_bps", [1e10, 1e12, 1e18])
@pytest.mark.parametrize(
    "model", [MODELS["vgg16"], small("gpt2-medium", 3)], ids=lambda model: model.name
)
def test_a_chain_on_all_gpus_takes_as_long_as_its_closed_form(
    model: Model, rate_bps: float
) -> None:
    """Everybody computes as long, then everybody sends to all others at once; gradients are left out.

    A residual is no exception: its output went to everybody already, and its gradient is sent when the last
    one that takes it has been computed.
    """
    mp = 8
    workload = placed_workload(
        model, 2, mp, 16, mp, DEVICE, quantum_s=TINY_S, all_reduce=False
    )
    compute_s = 3 * forward_flops(model) * 8 / mp / DEVICE.flops_per_s(4)
    updated_s = OPTIMISER_BYTES * parameters(model) / mp / DEVICE.memory_bytes_per_s
    outputs = sum(one.output_bytes for one in operators(model, 8)[:-1])
    exchanged_s = 2 * (mp - 1) / mp * outputs * 8 / rate_bps
    for how in ("exact", "classes"):
        assert run(workload, rate_bps, how).total_s == pytest.approx(
            compute_s + updated_s + exchanged_s, rel=1e-6
        )


def test_gradients_are_reduced_while_the_backward_pass_goes_on() -> None:
    """And so in the network they cost less than what the authors add, but not nothing."""
    model = MODELS["gpt2-medium"]
    without, with_ = (
        run(
            placed_workload(model, 8, 4, 64, 16, DEVICE, all_reduce=reduced),
            4e11,
            "classes",
        ).total_s
        for reduced in (False, True)
    )
    alone = 7 / 8 * authors_all_reduce_s(4 * parameters(model) / 4, 4e11)
    assert without < with_ < without + alone


def test_1024_gpus_are_eight_programs() -> None:
    authors = AUTHORS["transformer-big"]
    workload = placed_workload(
        MODELS["transformer-big"], authors.dp, authors.mp, authors.batch, 16, DEVICE
    )
    assert (workload.ranks, len(workload.programs)) == (1024, 8)
    matrix = traffic(workload)
    apart = (np.arange(1024)[None] - np.arange(1024)[:, None])[matrix > 0]
    assert set(apart.tolist()) == {*range(-7, 0), *range(1, 8), 8, 8 - 1024}
    assert ((matrix > 0).sum(axis=1) == 8).all()
    assert matrix.sum() == pytest.approx(sum(sent(workload).values()), rel=1e-9)


@given(partners=st.integers(3, 12), dp=st.integers(1, 3), mp=st.integers(1, 16))
@settings(max_examples=30, deadline=None)
def test_the_widest_window_keeps_the_degree(partners: int, dp: int, mp: int) -> None:
    window = widest_window(partners, dp, mp)
    model = small("gpt2-medium", 4)
    workload = placed_workload(
        model, dp, mp, dp, window, DEVICE, sequence=8, quantum_s=TINY_S
    )
    matrix = traffic(workload)
    assert (matrix > 0).sum(axis=1).max() <= partners
    assert (matrix > 0).sum(axis=0).max() <= partners
    assert window == mp or 2 * window + (dp > 1) > partners


def test_the_authors_constants_are_theirs() -> None:
    for name, authors in AUTHORS.items():
        assert authors.dp * authors.mp == 1024
        assert authors.batch % authors.dp == 0
        assert authors.gradient_bytes != 4 * parameters(MODELS[name])
    assert authors_all_reduce_s(
        AUTHORS["resnet50"].gradient_bytes, 1e12
    ) == pytest.approx(4e-3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dp": 0}, "dp: 0 must be 1 or more"),
        ({"mp": 0}, "mp: 0 must be 1 or more"),
        ({"window": 0}, "window: 0 must be 1 or more"),
        ({"batch": 9}, "batch: dp 2 does not divide 9 samples"),
        ({"gradient_bytes": -1}, "gradient: -1 bytes; it must be 0 or more"),
        ({"takes": "all"}, "takes: no all; there are whole, part"),
        (
            {"quantum_s": 0.0},
            "split into at most 2 pieces of 0 s; both must be above 0",
        ),
        ({"element_bytes": 3}, "a100: no rate for elements of 3 bytes"),
        ({"algorithm": "x"}, "algorithm: "),
        (
            {"sequence": 4096},
            "sequence: 4096 tokens, but gpt2-medium has 1024 positions",
        ),
    ],
)
def test_impossible_settings_are_named(
    changed: dict[str, object], message: str
) -> None:
    wanted: dict[str, object] = {"dp": 2, "mp": 2, "batch": 8, "window": 4} | changed
    with pytest.raises(ValueError, match=message):
        placed_workload(MODELS["gpt2-medium"], device=DEVICE, **wanted)  # type: ignore[arg-type]


def test_more_messages_than_anybody_waits_for_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "MOST_MESSAGES", 50)
    with pytest.raises(
        ValueError,
        match=r"mp: .* more than 50 messages; take fewer, .* or a longer quantum$",
    ):
        placed_workload(few_blocks(), 1, 4, 4, 4, DEVICE)


def test_impossible_degrees_are_named() -> None:
    with pytest.raises(
        ValueError, match="2 partners a GPU are too few for dp 2 and mp 8"
    ):
        widest_window(2, 2, 8)
    with pytest.raises(
        ValueError, match="0 GPUs with a window of 4: both must be 1 or more"
    ):
        place([], [], [], 0, 4)
