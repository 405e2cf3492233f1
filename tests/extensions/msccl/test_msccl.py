"""MSCCL files: what others wrote is judged by the checker, ours read back equal, mistakes are one line."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from ringlight.extensions.msccl.reader import (
    STEPS_LIMIT,
    Algorithm,
    algorithm_of,
    read_msccl,
)
from ringlight.extensions.msccl.writer import msccl_text, write_msccl
from ringlight.fabric.collectives import apply_schedule, schedule_of
from ringlight.fabric.kinds import KINDS, collective_steps
from ringlight.fabric.steps import Step, Steps
from ringlight.fabric.verify import verify
from ringlight.workloads.formats.files import TEXT_LIMIT

RING = Path(__file__).parent / "data/custom_allreduce.xml"
EVERY = [(kind, name) for kind, names in KINDS.items() for name in names]


def of(text: str) -> Algorithm:
    return algorithm_of(text.encode(), "a.xml")


def rows(steps: Steps) -> list[tuple[str, list[tuple[int, ...]]]]:
    """Each step's operation and its transfers, in one order."""
    return [
        (
            s.op,
            sorted(
                zip(
                    *(
                        a.tolist()
                        for a in (s.sources, s.destinations, s.first, s.count)
                    ),
                    strict=True,
                )
            ),
        )
        for s in steps
    ]


# --- files of others ------------------------------------------------------------------------------


def test_the_ring_of_astra_sim_is_a_ring() -> None:
    found = read_msccl(RING)
    assert (found.kind, found.root, found.steps.name) == (
        "all-reduce",
        0,
        "allreduce_ring_1channelsperring",
    )
    assert rows(found.steps) == rows(collective_steps("all-reduce", "ring", 8))
    vectors = [np.arange(24, dtype=np.float32) * rank for rank in range(8)]
    for result in apply_schedule(schedule_of(found.steps), vectors):
        assert result.tolist() == (np.arange(24) * 28).tolist()


def line(
    s: int,
    kind: str,
    src: str,
    dst: str,
    after: tuple[int, int] = (-1, -1),
    cnt: int = 1,
) -> str:
    """A step from place to place, such as i0 to s2."""
    places = (
        f'srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" dstoff="{dst[1:]}"'
    )
    deps = f'depid="{after[0]}" deps="{after[1]}" hasdep="0"'
    return f'<step s="{s}" type="{kind}" {places} cnt="{cnt}" {deps}/>'


def block(number: int, send: int, recv: int, steps: list[str], chan: int = 0) -> str:
    inside = "\n".join(steps)
    return (
        f'<tb id="{number}" send="{send}" recv="{recv}" chan="{chan}">\n{inside}\n</tb>'
    )


def algo(
    coll: str,
    chunks: int,
    gpus: list[list[str]],
    in_place: bool = True,
    scratch: int = 0,
    more: str = "",
) -> str:
    n = len(gpus)
    head = f'<algo name="mine" nchunksperloop="{chunks}" ngpus="{n}" coll="{coll}" inplace="{int(in_place)}"'
    size = f'i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="{scratch}"'
    body = [
        f'<gpu id="{k}" {size}>\n' + "\n".join(blocks) + "\n</gpu>"
        for k, blocks in enumerate(gpus)
    ]
    return "\n".join([f"{head}{more}>", *body, "</algo>"])


def all_pairs(n: int, waits: bool = True) -> str:
    """Everybody sends its vector to everybody's scratch, and adds up when all has left and come."""
    gpus = []
    for rank in range(n):
        peers = [peer for peer in range(n) if peer != rank]
        blocks = [
            block(
                k,
                peer,
                peer,
                [line(0, "s", "i0", f"s{rank}"), line(1, "r", "i0", f"s{peer}")],
            )
            for k, peer in enumerate(peers)
        ]
        nops = (
            [line(k, "nop", "i-1", "o-1", (k, 1), cnt=0) for k in range(n - 1)]
            if waits
            else []
        )
        adds = [line(n + k, "re", f"s{peer}", "i0") for k, peer in enumerate(peers)]
        gpus.append([*blocks, block(n, -1, -1, nops + adds)])
    return algo("allreduce", 1, gpus, scratch=n)


def passing_ring(n: int) -> str:
    """One chunk: reduced from GPU 0 to the last without being kept, and back round to all."""
    gpus = []
    for rank in range(n):
        up, on = (rank - 1) % n, (rank + 1) % n
        first = "s" if rank == 0 else "rrcs" if rank == n - 1 else "rrs"
        second = ["rcs" if rank < n - 2 else "r"] if rank < n - 1 else []
        steps = [line(s, kind, "i0", "i0") for s, kind in enumerate([first, *second])]
        gpus.append([block(0, on, up, steps)])
    return algo("allreduce", 1, gpus)


def gather_out_of_place(n: int) -> str:
    gpus = []
    for rank in range(n):
        sends = [
            block(
                k, k, k, [line(0, "s", "i0", f"o{rank}"), line(1, "r", "i0", f"o{k}")]
            )
            for k in range(n)
            if k != rank
        ]
        gpus.append([*sends, block(n, -1, -1, [line(0, "cpy", "i0", f"o{rank}")])])
    return algo("allgather", n, gpus, in_place=False)


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("make", [all_pairs, passing_ring, gather_out_of_place])
def test_every_type_of_step_is_read(make: Callable[[int], str], n: int) -> None:
    found = of(make(n))
    steps = 2 * n - 2 if make is passing_ring else 1
    assert (found.steps.world_size, found.steps.steps, found.steps.name) == (
        n,
        steps,
        "mine",
    )
    verify(found.kind, found.steps)


def test_a_scatter_may_have_its_output_apart_or_within_its_input() -> None:
    def text(in_place: bool) -> str:
        gpus = []
        for rank, peer in ((0, 1), (1, 0)):
            out = f"i{rank}" if in_place else "o0"
            steps = [line(0, "s", f"i{peer}", "i0"), line(1, "rrc", f"i{rank}", out)]
            gpus.append([block(0, peer, peer, steps)])
        return algo("reduce_scatter", 2, gpus, in_place)

    for in_place in (True, False):
        assert rows(of(text(in_place)).steps) == [
            ("reduce", [(0, 1, 1, 1), (1, 0, 0, 1)])
        ]


# --- ours -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_ours_read_back_equal(kind: str, name: str, tmp_path: Path) -> None:
    for n in (1, 2, 3, 4, 7, 8):
        for root in {0, n - 1} if kind in ("broadcast", "reduce") else {0}:
            steps = collective_steps(kind, name, n, root)
            write_msccl(tmp_path / "a.xml", kind, steps, root)
            back = read_msccl(tmp_path / "a.xml")
            assert (back.kind, back.root) == (kind, root)
            assert replace(back.steps, make=steps.make) == steps
            assert rows(back.steps) == rows(steps)


def test_so_do_those_that_were_read() -> None:
    for text in (
        RING.read_text(),
        all_pairs(3),
        passing_ring(4),
        gather_out_of_place(3),
    ):
        found = of(text)
        back = of(msccl_text(found.kind, found.steps))
        assert (back.kind, rows(back.steps)) == (found.kind, rows(found.steps))


def test_a_file_of_ours_needs_no_attribute_of_ours_to_be_right() -> None:
    for kind, name in EVERY:
        steps = collective_steps(kind, name, 6)
        text = re.sub(r' (at|step_by_step)="\d+"', "", msccl_text(kind, steps))
        verify(kind, of(text).steps)


# --- mistakes -------------------------------------------------------------------------------------


def exchange() -> str:
    """Two GPUs that exchange one chunk."""
    gpus = [
        [block(0, peer, peer, [line(0, "s", "i0", "i0"), line(1, "rrc", "i0", "i0")])]
        for peer in (1, 0)
    ]
    return algo("allreduce", 1, gpus)


WRONG = [
    ("", "line 1: no element found"),
    ("<algo", "line 1: unclosed token"),
    ("<gpu/>", "line 1: 'gpu' does not belong into a file"),
    ('<!DOCTYPE algo [<!ENTITY a "aa">]>\n<algo name="&a;"/>', "line 1: a document type, which"),
    (exchange().replace("<tb", "<step", 1), "line 3: 'step' does not belong into gpu"),
    (exchange().replace("</algo>", "</algo><algo/>"), "junk after document element"),
    (exchange().replace(' coll="allreduce"', ""), "line 1: algo has no coll; there are allreduce, "),
    (exchange().replace('"allreduce"', '"gather"'), "line 1: algo has 'gather' coll; there are allreduce, "),
    (exchange().replace('ngpus="2"', 'ngpus="999999999"'), "line 1: there is no gpu 2 of 999999999"),
    (exchange().replace('ngpus="2"', 'ngpus="0x2"'), "line 1: algo has ngpus '0x2', not a whole"),
    (exchange().replace('"mine"', '"a&#10;b"'), r"line 1: algo has the name 'a\nb'; "),
    (exchange().replace('loop="1"', 'loop="99999999"'), "line 1: 2 GPUs and 99999999 chunks are more"),
    (exchange().replace(' inplace="1"', ' inplace="1" root="2"'), "line 1: algo has root '2', not"),
    (exchange().replace('gpu id="1"', 'gpu id="0"'), "line 8: a second gpu 0"),
    (exchange().replace(' s_chunks="0"', "", 1), "line 2: gpu has no s_chunks"),
    (exchange().replace('send="1" recv="1"', 'send="0" recv="1"'), "line 3: tb 0 of gpu 0 sends to itself"),
    (exchange().replace("</tb>\n", '</tb>\n<tb id="0"/>\n', 1), "line 7: a second tb 0 of gpu 0"),
    (
        exchange().replace("</tb>\n", '</tb>\n<tb id="4" send="1" recv="-1" chan="0"/>\n', 1),
        "line 7: tb 4 has the peer and the channel of another",
    ),
    (exchange().replace('send="1"', 'send="-1"'), "line 4: step 0 is s, and its tb has no such peer"),
    (exchange().replace('step s="1"', 'step s="0"', 1), "line 5: step 0 behind step 0"),
    (exchange().replace('"rrc"', '"xyz"'), "line 5: step has 'xyz' type; there are r, rcs, "),
    (exchange().replace('srcbuf="i"', 'srcbuf="x"'), "line 4: step has 'x' srcbuf; there are i, o, s"),
    (exchange().replace('srcoff="0"', 'srcoff="1"'), "line 4: there are no chunks 1 to 1 of buffer i"),
    (exchange().replace('srcoff="0"', 'srcoff="-1"'), "line 4: there are no chunks -1 to -1 of buffer i"),
    (exchange().replace('cnt="1"', 'cnt="0"'), "line 4: step has cnt '0', not a whole number from 1 "),
    (exchange().replace('depid="-1"', 'depid="0"'), "line 4: depid and deps are both -1 or none of them"),
    (
        exchange().replace('depid="-1" deps="-1"', 'depid="7" deps="2"'),
        "line 4: it waits for step 2 of tb 7, which there is not",
    ),
    (
        exchange().replace('depid="-1" deps="-1"', 'depid="0" deps="1"'),
        "line 4: gpu 0, tb 0, step 0 waits for ever",
    ),
    (exchange().replace('type="s"', 'type="nop"', 1), "line 11: gpu 1, tb 0, step 1 waits for ever"),
    (exchange().replace('"rrc"', '"nop"', 1), "line 10: gpu 0 never receives what gpu 1 sends here"),
    (exchange().replace('"rrc"', '"r"', 1), "line 2: chunk 0 of buffer o of gpu 0 does not end with"),
    (algo("alltoall", 3, [[], []]), "line 1: nchunksperloop 3 cannot be divided among 2 GPUs"),
    (algo("allgather", 2, [[], []]), "line 2: chunk 1 of buffer o of gpu 0 does not end with"),
    (
        algo("allreduce", 2, [[block(0, -1, -1, [line(0, "re", "i0", "i1")])], []]),
        "line 4: it adds chunk 0 to chunk 1",
    ),
    (all_pairs(3, waits=False), "there is nothing in chunk 1 of buffer s of gpu "),
    (all_pairs(2).replace('srcbuf="s" srcoff="1"', 'srcbuf="i" srcoff="0"'), "the value of gpu 0 a second"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[said[:60] for _, said in WRONG])
def test_what_is_wrong_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        of(text)
    assert re.match(r"a\.xml, line \d+: [^\n]+$", str(caught.value))
    assert said in str(caught.value)


def test_other_ends_of_a_file_are_one_line_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.xml: No such file or directory$"):
        read_msccl(tmp_path / "none.xml")
    with pytest.raises(ValueError, match=r"Is a directory$"):
        read_msccl(tmp_path)
    with (tmp_path / "long.xml").open("wb") as file:
        file.truncate(TEXT_LIMIT + 1)
    with pytest.raises(
        ValueError, match=f"it has {TEXT_LIMIT + 1} bytes, {TEXT_LIMIT} are allowed$"
    ):
        read_msccl(tmp_path / "long.xml")
    with pytest.raises(ValueError, match=r"No such file or directory$"):
        write_msccl(
            tmp_path / "no/a.xml", "all-reduce", collective_steps("all-reduce", "", 2)
        )


RACE = r"^a\.xml, line 4: nothing says whether line 7, too at chunk 0 of buffer i of gpu 0, comes first$"


def test_a_missing_dependency_is_found() -> None:
    """GPU 0 sends on what came or what was there, as its thread blocks please."""

    def passing(after: tuple[int, int]) -> str:
        send = line(0, "s", "i0", "i0")
        gpus = [
            [
                block(0, -1, 1, [line(0, "rrc", "i0", "i0")]),
                block(1, 2, -1, [line(0, "s", "i0", "i0", after)]),
            ],
            [block(0, 0, -1, [send])],
            [block(0, -1, 0, [line(0, "rrc", "i0", "i0")])],
        ]
        return algo("reduce", 1, gpus, more=' root="2"')

    assert of(passing((0, 0))).steps.steps == 2
    with pytest.raises(ValueError, match=RACE):
        of(passing((-1, -1)))


def test_a_race_is_refused_even_where_both_ways_end_well() -> None:
    """What GPU 1 gets into its scratch, and does not use, has GPU 1's own value in it or has not."""
    receive, send = line(0, "rrc", "i0", "i0"), line(0, "s", "i0", "s0")
    there = [block(0, 0, 0, [line(0, "s", "i0", "i0"), line(1, "r", "i0", "s0")])]
    with pytest.raises(ValueError, match=RACE):
        of(
            algo(
                "reduce",
                1,
                [[block(0, -1, 1, [receive]), block(1, 1, -1, [send])], there],
                scratch=1,
            )
        )


def test_a_race_is_told_whichever_of_both_was_first() -> None:
    copies = [
        block(0, -1, -1, [line(0, "cpy", "i0", "s0")]),
        block(1, -1, -1, [line(0, "cpy", "s0", "s1")]),
    ]
    with pytest.raises(
        ValueError,
        match=r"line 7: nothing says whether line 4, too at chunk 0 of buffer s",
    ):
        of(algo("allreduce", 1, [copies], scratch=2))


def test_two_that_only_read_are_no_race() -> None:
    send, receive = line(0, "s", "i0", "i0"), line(0, "r", "i0", "i0")
    gpus = [[block(0, 1, -1, [send]), block(1, 2, -1, [send])]]
    gpus += [[block(0, -1, 0, [receive])], [block(0, -1, 0, [receive])]]
    assert of(algo("broadcast", 1, gpus)).steps.steps == 1


def test_order_passes_through_other_gpus() -> None:
    """GPU 0 changes its chunk when GPU 1 has it: it is told by what comes back, not by a dependency."""
    gpus = [
        [
            block(0, 1, -1, [line(0, "s", "i0", "i0")]),
            block(1, -1, 1, [line(0, "r", "i0", "i0")]),
        ],
        [block(0, 0, 0, [line(0, "rrcs", "i0", "i0")])],
    ]
    assert of(algo("allreduce", 1, gpus)).steps.steps == 2


def test_a_file_of_too_many_steps_is_not_begun() -> None:
    nops = [line(k, "nop", "i-1", "o-1", cnt=0) for k in range(STEPS_LIMIT + 1)]
    with pytest.raises(
        ValueError, match=rf"line 1: {len(nops)} steps; {STEPS_LIMIT} can be checked$"
    ):
        of(algo("allreduce", 1, [[block(0, -1, -1, nops)]]))


def test_steps_that_others_wait_for_say_so() -> None:
    for kind, name in EVERY:
        for gpu in ElementTree.fromstring(
            msccl_text(kind, collective_steps(kind, name, 5))
        ):
            steps = {(tb.get("id"), step.get("s")): step for tb in gpu for step in tb}
            waited = {(step.get("depid"), step.get("deps")) for step in steps.values()}
            said = {place for place, step in steps.items() if step.get("hasdep") == "1"}
            assert said == waited - {("-1", "-1")}


def test_what_does_not_fit_in_place_is_refused_and_said() -> None:
    """GPU 1 passes on what comes from GPU 0 and from GPU 3, each by itself, and its own last."""
    sends = [line(0, "s", "i0", "s0")]
    gpus = [
        [block(0, 1, -1, sends)],
        [
            block(0, -1, 0, [line(0, "r", "i0", "s0")]),
            block(1, -1, 3, [line(0, "r", "i0", "s1")]),
            block(
                2,
                2,
                -1,
                [
                    line(k, "s", where, "i0", (k % 2, 0))
                    for k, where in enumerate(("s0", "s1", "i0"))
                ],
            ),
        ],
        [block(0, -1, 1, [line(k, "rrc", "i0", "i0") for k in range(3)])],
        [block(0, 1, -1, sends)],
    ]
    said = "two sums of chunk 0 are at gpu 1 at once, which does not fit in place"
    with pytest.raises(ValueError, match=rf"a\.xml, line 1: {said}"):
        of(algo("reduce", 1, gpus, scratch=2, more=' root="2"'))


# --- mutations ------------------------------------------------------------------------------------


def mutated(text: str, chance: random.Random) -> bytes:
    """A file with one to three changes of a kind that happens to files."""
    data = text.encode()
    for _ in range(chance.choice((1, 1, 2, 3))):
        lines = data.splitlines(keepends=True)
        k, j = chance.randrange(len(lines)), chance.randrange(len(lines))
        at = chance.randrange(len(data))
        how = chance.randrange(8)
        if how == 0:
            del lines[k]
        elif how == 1:
            lines.insert(k, lines[j])
        elif how == 2:
            lines[k], lines[j] = lines[j], lines[k]
        elif how == 3:
            words = [
                b"-1",
                b"0",
                b"1",
                b"2",
                b"7",
                b"999999999",
                b"i",
                b"s",
                b"r",
                b"rrc",
                b"cpy",
                b"nop",
                b"",
            ]
            lines[k] = replaced(
                lines[k], rb'"[^"]*"', b'"' + chance.choice(words) + b'"', chance
            )
        elif how == 4:
            lines[k] = replaced(lines[k], rb' \w+="[^"]*"', b"", chance)
        if how < 5:
            data = b"".join(lines)
        elif how == 5:
            data = data[:at]
        elif how == 6:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        else:
            data = (
                data[:at]
                + chance.choice((b"<", b"&a;", b"\0", b"<!-- ", b"\xff", b'"'))
                + data[at:]
            )
        if not data.strip():
            return data
    return data


def replaced(data: bytes, what: bytes, by: bytes, chance: random.Random) -> bytes:
    """One of the places where ``what`` is, replaced."""
    found = list(re.finditer(what, data))
    if not found:
        return data
    place = chance.choice(found)
    return data[: place.start()] + by + data[place.end() :]


SOURCES = {
    "astra-sim": RING.read_text,
    "all pairs": lambda: all_pairs(3),
    "passing ring": lambda: passing_ring(4),
    "gather out of place": lambda: gather_out_of_place(3),
    "halving": lambda: msccl_text(
        "reduce-scatter", collective_steps("reduce-scatter", "halving", 5)
    ),
    "bruck": lambda: msccl_text(
        "all-to-all", collective_steps("all-to-all", "bruck", 4)
    ),
    "chain": lambda: msccl_text(
        "broadcast", collective_steps("broadcast", "chain", 3, 1), 1
    ),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_changed_file_is_another_right_one_or_refused_in_one_line(
    source: str,
) -> None:
    text = SOURCES[source]()
    accepted = 0
    for seed in range(40):
        data = mutated(text, random.Random(f"{source} {seed}"))
        found = read_or_refused(data)
        if isinstance(found, str):
            assert re.fullmatch(r"a\.xml[,:] .+", found), seed
            assert found.isprintable(), seed
        else:
            accepted += 1
            verify(found.kind, found.steps, found.root)
            assert_adds_up(found)
    assert accepted < 40


def read_or_refused(data: bytes) -> Algorithm | str:
    try:
        return algorithm_of(data, "a.xml")
    except ValueError as error:
        return str(error)


def assert_adds_up(found: Algorithm) -> None:
    """With numbers, apart from the checker, where all ranks must have all sums."""
    if found.kind == "all-reduce":
        steps = found.steps
        chance = np.random.default_rng(0)
        vectors = [
            chance.integers(0, 1000, steps.chunks).astype(np.float32)
            for _ in range(steps.world_size)
        ]
        for result in apply_schedule(schedule_of(steps), vectors):
            assert result.tolist() == np.sum(vectors, axis=0).tolist()


def test_a_schedule_that_is_wrong_is_written_and_not_read() -> None:
    ring = collective_steps("all-gather", "ring", 4)
    first, *others = list(ring)

    def shifted(step: Step) -> Step:
        return replace(step, first=(step.first + 1) % 4)

    for made in (
        [shifted(first), *others],
        [first, *map(shifted, others)],
        [first, *others[1:]],
    ):
        wrong = replace(ring, steps=len(made), make=lambda made=made: iter(made))  # type: ignore[misc]
        with pytest.raises(ValueError, match=r"^a\.xml"):
            of(msccl_text("all-gather", wrong))
