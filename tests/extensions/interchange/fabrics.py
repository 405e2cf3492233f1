"""Fabrics for tests: hypothesis plugs them together."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from ringlight.extensions.interchange.snapshot import Snapshot
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric


def fabric_of(document: dict[str, Any]) -> Fabric:
    return build_fabric(FabricSpec.model_validate(document))


def lit(document: dict[str, Any], name: str = "test") -> Snapshot:
    fabric = fabric_of(document)
    return Snapshot(name, fabric, fabric.circuits)


#: The fabric of the examples of formats: two packet switches, an optical switch, six GPUs.
TWO_TORS: dict[str, Any] = {
    "servers": {
        "s0": {"gpus": {"g0": "m40", "g1": "titan-v"}},
        "s1": {"gpus": {"g2": "m40", "g3": "m40", "g4": "m40", "g5": "m40"}},
    },
    "packet_switches": {"tor0": {"ports": 5}, "tor1": {"ports": 5}},
    "optical_switches": {"ocs0": {"size": 14, "loss_db": 1.5, "dark": "25 ms"}},
    "links": [
        *({"ends": [f"g{n}", f"ocs0:{n + 1}"], "rate": "40 Gbit/s"} for n in range(6)),
        *({"ends": [f"tor{t}:{n}", f"ocs0:{6 + 4 * t + n}"], "rate": "40 Gbit/s"}
          for t in range(2) for n in range(1, 5)),
        {"ends": ["tor0:5", "tor1:5"], "rate": "12.903 Gbit/s", "queue": "10 ms"},
    ],
    "circuits": [
        ["g0", "tor0:1"], ["g1", "tor0:2"], ["g2", "tor0:3"],
        ["g3", "tor1:1"], ["g4", "tor1:2"], ["g5", "tor1:3"],
    ],
}  # fmt: skip

_RATES = st.integers(1, 800_000).map(lambda mbits: f"{mbits} Mbit/s")


#: Keys of an optical switch that an export can carry.
_OPTICAL = st.fixed_dictionaries(
    {},
    optional={
        "profile": st.sampled_from(["mems", "piezo", "ideal"]),
        "loss_db": st.floats(0, 5),
        "dark": st.integers(0, 10**6).map(lambda us: f"{us} us"),
    },
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Fabric files whose every node has something plugged in."""
    count = draw(st.integers(1, 6))
    prefix, first = draw(st.sampled_from([("g", 0), ("g", 1), ("node-", 0), ("x", 7)]))
    gpus = [f"{prefix}{first + n}" for n in range(count)]
    servers: dict[str, Any] = {}
    for gpu in gpus:
        server = f"srv{draw(st.integers(0, 2))}"
        model = draw(st.sampled_from(["gpu", "tesla-m40", "A100 80GB"]))
        servers.setdefault(server, {"gpus": {}})["gpus"][gpu] = model
    switches = [f"tor{n}" for n in range(draw(st.integers(1, 3)))]
    ports = dict.fromkeys(switches, 0)
    links: list[dict[str, Any]] = []

    def port(switch: str) -> str:
        ports[switch] += 1
        return f"{switch}:{ports[switch]}"

    def link(a: str, b: str) -> None:
        queue = draw(st.sampled_from(["20 ms", "1 us", "0.7 ms"]))
        links.append({"ends": [a, b], "rate": draw(_RATES), "queue": queue})

    optical = 0
    fibres = []
    for gpu in gpus:
        switch = draw(st.sampled_from(switches))
        if draw(st.booleans()):
            optical += 2
            near = port(switch)
            link(gpu, f"ocs:{optical - 1}")
            link(near, f"ocs:{optical}")
            fibres.append([gpu, near])
        else:
            link(gpu, port(switch))
    for a, b in pairwise(switches):
        link(port(a), port(b))
    document: dict[str, Any] = {
        "servers": servers,
        "packet_switches": {
            s: {"ports": n + draw(st.integers(0, 2))} for s, n in ports.items() if n
        },
        "links": links,
    }
    if optical:
        size = optical + draw(st.integers(0, 3))
        document["optical_switches"] = {"ocs": {"size": size, **draw(_OPTICAL)}}
        document["circuits"] = [pair for pair in fibres if draw(st.booleans())]
    return document
