"""Blocks of the SiP-ML experiments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from docs.figures.parts import Block, Cell, Figure, Of, Picture, Table, of, simulated
from docs.figures.words import number, ratio, seconds

TRAIN = "job train"
_RATE, _WORKLOAD = "parameters.bandwidth.value", "jobs.train.workload"
_GPU, _TAKES, _COLLECTIVE = (f"parameters.{name}.value" for name in ("gpu", "takes", "collective"))
#: All-reduces of models in eight pieces, and of models that each GPU has whole.
_OF_EIGHT = ["ring", "bidirectional-ring"]
_OF_ONE = [*_OF_EIGHT, "hierarchical-ring-group-8"]
_MODELS = ("resnet50", "transformer-big", "gpt2-medium")
_RATES = ("0.5 Tbit/s", "1 Tbit/s", "2 Tbit/s", "4 Tbit/s", "8 Tbit/s")
_ENDS = (_RATES[0], _RATES[-1])
#: Caps of every pair, and all arms whose bandwidth is not swept.
_CAPS = ("cap-400", "cap-200")
_OWN_RATE = ("servers", *_CAPS)
_OVER = ("servers", "cap-400")


def _at(arm: str, workload: str, metric: str = "jct", **changed: str) -> Figure:
    paths = {"rate": _RATE, "gpu": _GPU, "takes": _TAKES, "collective": _COLLECTIVE}
    swept = {key: value for key, value in changed.items() if key != "rate" or arm not in _OWN_RATE}
    return simulated(arm, metric, TRAIN, {_WORKLOAD: workload} | {paths[k]: v for k, v in swept.items()})


def _each(arm: str, workload: str, **changed: str) -> list[Figure]:
    """The times of an arm with each all-reduce that is searched there."""
    if arm in _CAPS:
        return [_at(arm, workload, **changed)]
    names = _OF_ONE if workload.endswith("-whole") else _OF_EIGHT
    return [_at(arm, workload, collective=name, **changed) for name in names]


def _least(*found: float) -> str:
    return seconds(min(found))


def _iterations(model: str, rate: str) -> list[Cell]:
    arms = ("servers", "ideal", "sip-ocs", "sip-ring", "cap-400", "cap-200")
    return [f"`{model}`", rate, *(of(_least, *_each(arm, model, rate=rate)) for arm in arms)]


def _times(theirs: float, ours: float) -> str:
    return f"{theirs / ours:.2f}"


#: What stands in brackets for an all-reduce, by how its name begins.
_CALLED = {"hierarchical": "h", "bidirectional": "b", "ring": "r"}


def _in_pieces(value: float, at: str) -> str:
    pieces, collective = at.split(", ")
    return f"{seconds(value)} ({pieces} {_CALLED[collective.partition('-')[0]]})"


def _best(model: str, rate: str) -> list[Cell]:
    """Best division and all-reduce against best, in brackets what they are, and eight pieces beside it."""
    best = {
        arm: _at(arm, model, "jct_best", rate=rate) for arm in ("servers", "sip-ocs", "sip-ring", "ideal")
    }
    servers, ocs = (_each(arm, model, rate=rate) for arm in ("servers", "sip-ocs"))
    return [
        f"`{model}`",
        rate,
        *(of(_in_pieces, one, _at(arm, model, "jct_best_at", rate=rate)) for arm, one in best.items()),
        *(
            of(lambda a, b: f"**{_times(a, b)}**", best["servers"], best[arm])
            for arm in ("sip-ocs", "sip-ring")
        ),
        of(
            lambda agrees: "in" if agrees else "below",
            _at("sip-ocs", model, "jct_best_ratio_agrees", rate=rate),
        ),
        of(_least, *servers),
        of(_least, *ocs),
        _over(servers, ocs),
    ]


def _over(theirs: list[Figure], ours: list[Figure]) -> Of:
    """The best of their times over the best of ours."""
    count = len(theirs)
    return of(lambda *found: _times(min(found[:count]), min(found[count:])), *theirs, *ours)


def _speed_ups(model: str, gpu: str, theirs: bool, takes: str) -> list[Cell]:
    """Speed-ups over servers and a cap, at the least and greatest bandwidth.

    First with all models in eight pieces, then each in eight pieces or whole, whichever is faster; each with
    its best all-reduce.
    """
    workload = f"{model}-theirs" if theirs else model

    def pair(other: str, rate: str) -> tuple[Of, Of]:
        limited, ours = (_each(arm, workload, rate=rate, gpu=gpu, takes=takes) for arm in (other, "sip-ocs"))
        limited_whole, ours_whole = (
            _each(arm, f"{workload}-whole", rate=rate, gpu=gpu) for arm in (other, "sip-ocs")
        )
        return _over(limited, ours), _over([*limited, *limited_whole], [*ours, *ours_whole])

    pairs = [pair(other, rate) for other in _OVER for rate in _ENDS]
    said = "the authors'" if theirs else "4 a parameter"
    return [
        f"`{model}`",
        gpu.upper(),
        said,
        takes,
        *(one for one, _ in pairs),
        *(other for _, other in pairs),
    ]


def _over_first(first: float, *found: float) -> str:
    return ratio(min(found) / first)


def _added(model: str, rate: str) -> list[Cell]:
    """Gradients in the network and by the added term, for both counts of bytes."""
    cells: list[Cell] = [f"`{model}`", rate, of(seconds, _at("sip-ocs-added", model, rate=rate))]
    for name, workload in (("parameters", model), ("theirs", f"{model}-theirs")):
        sent = _each("sip-ocs", workload, rate=rate)
        added = _at("sip-ocs-added", model, f"iteration_added_{name}", rate=rate)
        cells += [of(_least, *sent), of(seconds, added), of(_over_first, added, *sent)]
    return cells


def _days(iterations: int, iteration_s: float) -> str:
    value = iterations * iteration_s
    return f"{value / 86400:.3g} d" if value >= 86400 else f"{value / 60:.3g} min"


_INTERVAL, _DARK, _DECISION = (f"parameters.{name}.value" for name in ("interval", "dark", "decision"))
#: The decision as measured, which is a value of the sweep.
_MEASURED = "3 ms"
_NEVER = "1000 s"


def _once(arm: str) -> Figure:
    return simulated(arm, "iteration", TRAIN, {_INTERVAL: _NEVER})


def _best_of(found: Sequence[float]) -> tuple[float, float]:
    """The least of times that are each followed by their interval, and that interval."""
    return min(zip(found[::2], found[1::2], strict=True))


def _best_said(*found: float) -> str:
    best, interval = _best_of(found)
    return f"{seconds(best)} ({seconds(interval)})"


def _best_over(once: float, *found: float) -> str:
    return ratio(_best_of(found)[0] / once)


def _dark(decision: str, dark: str) -> list[Cell]:
    """The best interval of both fabrics for a dark time, and that over light that is divided once."""
    cells: list[Cell] = [decision, dark]
    at = {_DARK: dark, _DECISION: decision}
    often = decision != _MEASURED and dark not in _SLOW
    for arm in ("ocs", "ring"):
        found = [
            simulated(each, metric, TRAIN, at)
            for each in ([arm] if often else []) + [f"{arm}-seldom"]
            for metric in ("iteration_best", "iteration_best_at")
        ]
        cells += [of(_best_said, *found), of(_best_over, _once(f"{arm}-once"), *found)]
    return cells


def _by_interval(said: str, arm: str, decision: str) -> list[Cell]:
    at = {_DARK: "10 ns", _DECISION: decision}
    found = (
        simulated(
            arm if interval.endswith("us") else f"{arm}-seldom",
            "iteration",
            TRAIN,
            at | {_INTERVAL: interval},
        )
        for interval in _INTERVALS
    )
    return [said, decision, *(of(seconds, one) for one in found), of(seconds, _once(f"{arm}-once"))]


def _late(interval: str) -> list[Cell]:
    at = {_INTERVAL: interval}
    counts = (simulated("divided", metric, TRAIN, at) for metric in ("divisions", "divisions_late"))
    iteration = of(seconds, simulated("divided", "iteration", TRAIN, at))
    return [interval, *(of(number, count) for count in counts), iteration]


def _degree(switches: int) -> list[Cell]:
    found = simulated("degree", "jct", TRAIN, {"parameters.switches.value": switches})
    over = of(lambda a, b: ratio(a / b), found, simulated("ideal", "jct", TRAIN, {_INTERVAL: _NEVER}))
    return [str(switches), of(lambda value: seconds(value / 3), found), over]


_INTERVALS = ("5 us", "20 us", "100 us", "1 ms", "10 ms")
_SLOW = ("1 ms", "20 ms")
_DARKS = ("10 ns", "1 us", "10 us", "100 us", *_SLOW)

BLOCKS: dict[str, Block] = {
    "picture-sip-ml": Picture(
        "sip_ml",
        "simulated",
        "search",
        "sip-ml-bandwidth.png",
        "Iteration time of three models with the best division over the bandwidth of a GPU, by fabric",
    ),
    "sip-ml-best": Table(
        "sip_ml",
        "model | GPU rate | servers of 8 | SiP-OCS | SiP-Ring | ideal | SiP-OCS over servers "
        "| SiP-Ring over servers | 1.3 to 9.1, **range** | 8 pieces: servers | 8 pieces: SiP-OCS | ratio",
        [_best(model, rate) for model in _MODELS for rate in _RATES],
    ),
    "sip-ml": Table(
        "sip_ml",
        "model | GPU rate | servers of 8 | ideal | SiP-OCS | SiP-Ring | 400 Gbit/s for every pair "
        "| 200 for every pair",
        [_iterations(model, rate) for model in _MODELS for rate in _RATES],
    ),
    "sip-ml-accuracy": Table(
        "sip_ml",
        "at 2 Tbit/s, best division | iterations | servers of 8 | ideal | SiP-OCS | SiP-Ring",
        [
            [
                f"`{model}`",
                f"{iterations:,}",
                *(
                    of(partial(_days, iterations), _at(arm, model, "jct_best", rate="2 Tbit/s"))
                    for arm in ("servers", "ideal", "sip-ocs", "sip-ring")
                ),
            ]
            for model, iterations in zip(_MODELS, (8192, 16384, 2_403_000), strict=True)
        ],
    ),
    "sip-ml-speed-ups": Table(
        "sip_ml",
        "model | GPU | bytes | takes | over servers, 0.5 Tbit/s | 8 Tbit/s | over 400 for every pair, 0.5 "
        "| 8 | faster division, over servers, 0.5 | 8 | over 400 for every pair, 0.5 | 8",
        [
            _speed_ups(model, gpu, theirs, takes)
            for model in _MODELS
            for gpu in ("a100", "v100")
            for theirs in (False, True)
            for takes in ("whole", "part")
        ],
    ),
    "sip-ml-added": Table(
        "sip_ml",
        "SiP-OCS | GPU rate | gradients not sent | 4 bytes a parameter: in the network | added | ratio "
        "| the authors' bytes: in the network | added | ratio",
        [_added(model, rate) for model in _MODELS for rate in _ENDS],
    ),
    "sip-ml-dark": Table(
        "sip_ml_light",
        "decided in | dark each time | SiP-OCS, divided | over SiP-OCS set once | SiP-Ring, divided "
        "| over SiP-Ring divided once",
        [_dark(decision, dark) for decision in ("0 s", "10 us", _MEASURED) for dark in _DARKS],
    ),
    "sip-ml-interval": Table(
        "sip_ml_light",
        f"dark for 10 ns | decided in | every {' | '.join(_INTERVALS)} | once",
        [
            _by_interval(said, arm, decision)
            for said, arm in (("SiP-OCS", "ocs"), ("SiP-Ring", "ring"))
            for decision in ("0 s", "10 us")
        ],
    ),
    "picture-sip-ml-light": Picture(
        "sip_ml_light",
        "simulated",
        "search",
        "sip-ml-light.png",
        "Iteration time with the best interval over the dark time, for three times that a decision takes",
    ),
    "picture-sip-ml-intervals": Picture(
        "sip_ml_intervals",
        "simulated",
        "turns",
        "sip-ml-intervals.png",
        "Time of a job by the interval between divisions of light, and which pairs waited at two intervals",
    ),
    "sip-ml-late": Table(
        "sip_ml_intervals",
        "divided every | divisions | divisions with most bytes on dark pairs | iteration",
        [_late(interval) for interval in ("7.2 ms", "7.4 ms", "7.6 ms")],
    ),
    "sip-ml-degree": Table(
        "sip_ml_light",
        "optical switches | iteration, mean | over ideal",
        [_degree(switches) for switches in (3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 32, 64)],
    ),
}
