"""What imports what, without circles and as ``docs/architecture.md`` allows; how docstrings begin."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from ringlight.containers.image import ROOT, code_files
from tests import house, prose
from tests.house import tree_of

CORE = ("fabric", "workloads", "controller", "testbed", "containers", "experiments")
ROOMS = (*CORE, "extensions")


def _required(name: str) -> list[str]:
    extension = importlib.import_module(f"ringlight.extensions.{name}").EXTENSION
    return [f"extensions.{required}" for required in extension.requires]


#: Ours that a room may import besides itself. A module's room is the longest prefix of its name here.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "fabric": (),
    "workloads": ("fabric", "workloads.graph"),
    "workloads.graph": ("fabric",),
    "workloads.job_settings": (),
    "workloads.graph_checks": ("fabric", "workloads.graph"),
    "workloads.graph_writer": ("fabric", "workloads.graph", "workloads.graph_checks"),
    "workloads.packed": ("fabric", "workloads.graph", "workloads.graph_checks"),
    "workloads.formats": ("fabric", "workloads"),
    "containers": (
        *("fabric", "workloads.following", "workloads.graph", "workloads.graph_checks"),
        *(
            "workloads.graph_writer",
            "workloads.job_settings",
            "workloads.packed",
            "workloads.splits",
        ),
    ),
    "controller": ("fabric", "controller"),
    "controller.__main__": ("fabric", "controller"),
    "controller.running": ("fabric", "controller"),
    "controller.openflow": (
        "fabric",
        "controller.tls_session",
        "controller.waiting_room",
    ),
    "controller.web": (
        *(
            "controller.errors",
            "controller.tls_session",
            "controller.waiting_room",
            "fabric.text",
        ),
    ),
    "controller.optical": ("fabric",),
    "controller.onic": ("fabric",),
    "controller.rest": (
        "fabric",
        "controller",
        "workloads.following",
        "workloads.job_settings",
    ),
    "testbed": (
        "fabric",
        "containers",
        "testbed.readiness",
        "testbed.standing_labs",
    ),
    "testbed.faults": ("controller.web.client",),
    "testbed.setup": ("testbed", "testbed.emulation", "containers"),
    "testbed.standing_labs": ("testbed", "testbed.emulation.clean"),
    "testbed.readiness": (
        "testbed",
        "containers",
        "controller.web.access",
        "controller.errors",
    ),
    "testbed.rigs": (
        "fabric",
        "controller.optical",
        "testbed.emulation.kernel",
        "testbed.emulation.optical",
        "testbed.process_start",
        "testbed.lab",
    ),
    "testbed.emulation": ("fabric", "containers", "testbed"),
    "testbed.emulation.agent": ("fabric", "containers", "testbed", "controller.web"),
    "testbed.emulation.onic": (
        "fabric",
        "controller.onic",
        "testbed.emulation",
        "testbed.lab",
    ),
    "testbed.emulation.optical": (
        "fabric",
        "testbed.emulation",
        "testbed.lab",
        "controller.web",
        "controller.errors",
    ),
    "testbed.simulation": (
        *("fabric", "workloads", "controller.onic.protocol"),
        *(
            f"controller.onic.{name}"
            for name in ("control_messages", "effects", "lease_times")
        ),
    ),
    "experiments": CORE,
}
#: An extension imports the core, itself and the extensions that it requires.
for _name in sorted(
    path.parent.name for path in (ROOT / "extensions").glob("*/__init__.py")
):
    MAY_IMPORT[f"extensions.{_name}"] = (*CORE, *_required(_name))

#: And of the rooms of experiments, what besides.
OF_EXPERIMENTS = {
    "language": (),
    "record": ("language",),
    "analysis": ("language", "record", "papers"),
    "papers": ("language", "record", "analysis"),
    "report": ("language", "record", "analysis", "papers"),
    "runner": ("language", "record", "analysis", "papers", "report", "backends"),
}
for _room, _others in OF_EXPERIMENTS.items():
    MAY_IMPORT[f"experiments.{_room}"] = (
        "fabric",
        "workloads",
        *(f"experiments.{name}" for name in _others),
    )
MAY_IMPORT["experiments.runner"] += (
    "testbed.devices",
    "testbed.lab_programs",
    "testbed.lab",
    "testbed.emulation.calibration",
    "testbed.preloaded",
)
#: What every room of the controller may use, and what each of these may use besides.
COMMON = ("bus", "errors", "store", "server_agent", "tls_session", "waiting_room")
OF_CONTROLLER = {
    "packets": ("openflow",),
    "jobs": (),
    "circuits": ("openflow", "optical", "packets", "jobs"),
    "light": ("onic", "optical", "circuits", "jobs"),
}
MAY_IMPORT |= {
    f"controller.{name}": ("controller.errors", "fabric.text") for name in COMMON
}
MAY_IMPORT["controller.server_agent"] += ("controller.web.client",)
for _room, _others in OF_CONTROLLER.items():
    MAY_IMPORT[f"controller.{_room}"] = (
        "fabric",
        *(f"controller.{name}" for name in (*COMMON, *_others)),
    )
MAY_IMPORT["controller.jobs"] += ("workloads.graph", "workloads.packed")
#: Packages of others, by the only rooms of the core that may import them.
ONLY_IN = {
    "os_ken": ["controller.openflow", "extensions"],
    "mininet": ["testbed.emulation", "extensions"],
    "numba": ["testbed.simulation"],
    "torch": ["extensions.optinc.onn"],
    "google": ["extensions.chakra", "extensions.gnmi.gnmi_session"],
    "grpc": ["extensions.gnmi.gnmi_client"],
    "h2": ["extensions.gnmi.grpc_calls"],
    "pygnmi": [
        "extensions.gnmi.gnmi_client",
        "extensions.ocp.ocp_gnmi",
        "extensions.sonic.sonic_gnmi",
        "extensions.gnmi.gnmi_session",
        "extensions.sonic.emulation.sonic_gnmi",
        "extensions.gnmi.gnmi_rig",
    ],
    "infragraph": ["extensions.interchange.infragraph_graph"],
    "ncclient": ["extensions.polatis.polatis_netconf"],
    "paramiko": ["extensions.polatis.polatis_netconf"],
}
#: All that these rooms need of others.
NEEDS_ONLY = {
    "fabric": {"numpy", "pydantic", "highspy"},
    "workloads.graph": {"numpy"},
    "workloads.graph_checks": {"numpy"},
    "workloads.graph_writer": {"numpy"},
    "workloads.job_settings": set(),
    "workloads.packed": {"numpy"},
    "containers.worker": {"numpy"},
    "testbed.simulation": {"numpy", "numba"},
}


@cache
def modules() -> dict[str, Path]:
    found = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _is_typing(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def _nodes(node: ast.AST, *, deferred: bool, typing: bool = False) -> Iterator[ast.AST]:
    """Statements below a node; ``deferred``: those of functions, too; ``typing``: those for types alone."""
    for child in ast.iter_child_nodes(node):
        # Nothing else has statements below it.
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            continue
        yield child
        if _is_typing(child) and not typing:
            continue
        if deferred or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _nodes(child, deferred=deferred, typing=typing)


def _room_name(name: str) -> str:
    """A module's name as here: its path. A bare import would find a user's folder, or nothing."""
    assert name.partition(".")[0] not in ROOMS, (
        f"{name} is imported by this name, not as ringlight.{name}"
    )
    return name.removeprefix("ringlight.")


@cache
def imports(module: str, *, deferred: bool = True) -> frozenset[str]:
    """Everything a module imports when it runs; ``deferred``: inside of functions, too."""
    found = set()
    for node in _nodes(tree_of(modules()[module]), deferred=deferred):
        if isinstance(node, ast.Import):
            found |= {_room_name(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: imports are absolute"
            names = {_room_name(f"{node.module}.{alias.name}") for alias in node.names}
            found |= {
                name if name in modules() else _room_name(str(node.module))
                for name in names
            }
    return frozenset(found)


def room_of(module: str) -> str:
    return max((room for room in MAY_IMPORT if within(module, room)), key=len)


def within(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """One circle of a graph; empty when there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_round_a_circle() -> None:
    assert not circle(
        {m: imports(m, deferred=False) & modules().keys() - {m} for m in modules()}
    )


def test_no_import_is_deferred_to_break_a_circle() -> None:
    ours = list(modules())
    assert not circle({m: imports(m) & set(ours) - {m} for m in ours})


def test_no_room_of_the_controller_imports_itself_round_a_circle() -> None:
    ours = [m for m in modules() if within(m, "controller")]
    rooms: dict[str, set[str]] = {}
    for module in ours:
        others = {room_of(name) for name in imports(module) & set(ours)}
        rooms.setdefault(room_of(module), set()).update(others - {room_of(module)})
    assert not circle(rooms)


def test_rooms_import_what_the_architecture_allows() -> None:
    wrong = [
        f"{module} imports {name}"
        for module in modules()
        for name in sorted(imports(module))
        if name in modules()
        and room_of(name) != room_of(module)
        and not any(within(name, allowed) for allowed in MAY_IMPORT[room_of(module)])
    ]
    assert not wrong


def test_packages_of_others_stay_in_their_rooms() -> None:
    wrong = []
    for module in modules():
        others = (
            {name.partition(".")[0] for name in imports(module)}
            - sys.stdlib_module_names
            - {"ringlight", *ROOMS}
        )
        wrong += [
            f"{module} imports {o}"
            for o in others
            if o in ONLY_IN and not any(within(module, room) for room in ONLY_IN[o])
        ]
        for room, allowed in NEEDS_ONLY.items():
            if within(module, room):
                wrong += [f"{module} imports {o}" for o in others - allowed]
    assert not wrong


def test_the_image_has_what_a_worker_imports() -> None:
    todo, seen = ["containers.worker.__main__"], set[str]()
    while todo:
        module = todo.pop()
        if module not in seen and module in modules():
            seen.add(module)
            todo += [*imports(module), module.rpartition(".")[0]]
    assert {modules()[module] for module in seen} <= set(code_files().values())


def test_simulating_needs_no_emulation() -> None:
    """A scenario simulated by the command, with its report, loads nothing of the emulated testbed."""
    code = """
import sys
from ringlight.experiments.cli.app import main
sys.argv = ["ringlight", "simulate", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(*sys.modules)
"""
    with tempfile.TemporaryDirectory() as runs:
        command = [
            sys.executable,
            "-c",
            code,
            str(ROOT / "tests/data/mini.yaml"),
            "--runs",
            runs,
        ]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        )
    loaded = done.stdout.splitlines()[-1].split()
    loaded = [name.removeprefix("ringlight.") for name in loaded]
    assert "testbed.simulation.engine" in loaded
    emulation = ("testbed.emulation", "experiments.backends.emulation")
    assert not [
        name for name in loaded if any(within(name, room) for room in emulation)
    ]


#: What no process needs, and what takes as long to import as many of its own modules together, by program.
_STARTS_WITHOUT = {
    # Each link test starts a worker for every GPU, and numpy takes half of a worker's start.
    "containers.worker.linktest": ("numpy",),
    "testbed.emulation.testbed": (
        "numpy",
        "networkx",
        "highspy",
        "matplotlib",
        "httpx",
        "rich",
    ),
    "testbed.emulation.optical.__main__": (
        "numpy",
        "networkx",
        "docker",
        "paramiko",
        "matplotlib",
    ),
    # Its ports are open before it imports the rest.
    "controller.__main__": ("numpy", "pydantic", "fastapi", "os_ken", "httpx"),
    "controller.running": (
        "networkx",
        "highspy",
        "matplotlib",
        "docker",
        "pyroute2.netlink",
        "paramiko",
    ),
    "experiments.cli.app": (
        "numpy",
        "pydantic",
        "matplotlib",
        "docker",
        "yaml",
        "httpx",
    ),
    "experiments.backends.emulation.lab_of_setting": (
        "ringlight.experiments.record.events",
        "httpx",
        "fastapi",
    ),
    "experiments.backends.emulation.backend": (
        "networkx",
        "matplotlib",
        "docker",
        "pyroute2.netlink",
        "fastapi",
    ),
}


@pytest.mark.parametrize("module", _STARTS_WITHOUT)
def test_a_process_starts_without_what_it_may_not_need(module: str) -> None:
    code = f"""
import sys
import ringlight.{module}
print(*(name for name, loaded in sys.modules.items() if loaded))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = done.stdout.split()
    assert f"ringlight.{module}" in loaded
    assert not {*_STARTS_WITHOUT[module]}.intersection(loaded)


def test_no_file_name_stands_more_than_three_times() -> None:
    """Who looks for a file of the core by its name finds few; it is called after what only it has.

    Extensions look alike: each has its own metrics, section, keys.
    """
    names = Counter(
        path.name
        for room in (*CORE, "benchmarks")
        for path in (ROOT / room).rglob("*.[pch]*")
        if path.suffix in (".py", ".c", ".h")
        and path.name not in ("__init__.py", "__main__.py")
    )
    assert not {name: count for name, count in names.items() if count > 3}


def test_no_docstring_begins_with_of() -> None:
    """A docstring begins with a verb or its noun, not with "Of"."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for place in (*ROOMS, "tests", "benchmarks", "docs", "src")
        for path in (ROOT / place).rglob("*.py")
        # Most files need not be parsed to see that they have none.
        if re.search(r"[\"']\s*Of\b", path.read_text())
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and node.value.value.split()[:1] == ["Of"]
    ]
    assert not wrong


#: A line that may import a room by its bare name.
BARE = re.compile(rf"(from|import)\s[^'\"\n]*(?<![.\w])({'|'.join(ROOMS)})\b")


def test_nothing_else_imports_a_room_by_its_bare_name() -> None:
    """Found only because this folder happens to be in the path, and then a second copy of the module."""
    for place in ("tests", "benchmarks", "docs", "scenarios"):
        for path in (ROOT / place).rglob("*.py"):
            if path.is_relative_to(ROOT / "tests/data/project"):
                continue  # somebody else's, with a folder of its own that is called experiments
            # Most files need not be parsed to see that they import none.
            if not BARE.search(path.read_text()):
                continue
            for node in _nodes(tree_of(path), deferred=True, typing=True):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = (
                        [alias.name for alias in node.names]
                        if isinstance(node, ast.Import)
                        else [node.module]
                    )
                    assert not {str(name).partition(".")[0] for name in names} & set(
                        ROOMS
                    ), f"{path}: {names}"


#: Names that only a kind of fabric has, and the classes that say which it is. All are of extensions.
KINDS = frozenset(
    """
    grid grids grid_of ring rings interconnect averager averagers divided
    Grid WdmRing Planes Averager Averaging Ideal Servers ParallelOcs DemandRing TorusOfGpus OneShot Rotors
    GridOfGpus WavelengthRing GridPlane RingPlane AveragerPlane WholePlane
    """.split()  # noqa: SIM905
)
#: Where rings are collectives.
OF_COLLECTIVES = (
    *("fabric.placement_heuristic", "fabric.placement_exact"),
    *("fabric.placement_problem", "fabric.schedules", "fabric.algorithms"),
)


def _conditions(tree: ast.AST) -> Iterator[ast.expr]:
    """What a module decides by: tests of statements, and what is true or false elsewhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.Match):
            yield node.subject
        elif (
            isinstance(node, ast.Compare | ast.BoolOp)
            or _denies(node)
            or _is_isinstance(node)
        ):
            assert isinstance(node, ast.expr)
            yield node


def _denies(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _is_isinstance(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"


def _names_kind(node: ast.AST) -> bool:
    found = {n.id.lstrip("_") for n in ast.walk(node) if isinstance(n, ast.Name)}
    found |= {
        n.attr.lstrip("_") for n in ast.walk(node) if isinstance(n, ast.Attribute)
    }
    if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith("kind"):
        found |= {
            n.value
            for n in ast.walk(node)
            if isinstance(n, ast.Constant) and isinstance(n.value, str)
        }
    return not found.isdisjoint(KINDS)


def _on_kinds(module: str) -> list[str]:
    """The outermost conditions of a module that name a kind, by their lines."""
    found = [
        node for node in _conditions(tree_of(modules()[module])) if _names_kind(node)
    ]
    inner = {id(part) for node in found for part in ast.walk(node) if part is not node}
    places = {id(node): node for node in found if id(node) not in inner}
    return [f"{module}:{node.lineno}: {ast.unparse(node)}" for node in places.values()]


def test_the_core_never_asks_what_kind_a_fabric_is() -> None:
    """Whoever needs to know what carries a job's bytes asks its plane (``fabric.planes``)."""
    rooms = (*OF_COLLECTIVES, "extensions")
    others = [
        module
        for module in modules()
        if not any(within(module, room) for room in rooms)
    ]
    assert not [line for module in sorted(others) for line in _on_kinds(module)]


def test_the_house_gets_no_harder_to_hold_in_the_head() -> None:
    """What ``tests/house.py`` counts only ever falls: record what is better in ``tests/data/house.json``."""
    recorded = json.loads((ROOT / "tests/data/house.json").read_text())
    counted = {name: sum(1 for _ in count()) for name, count in house.COUNTS.items()}
    counted["statements"] = house.statements(house.files())
    counted["core_statements"] = house.statements(house.core_files())
    counted |= {
        f"prose_{name}": sum(by.values()) for name, by in prose.counted().items()
    }
    assert recorded.keys() == counted.keys()
    # New code may bring statements; what names and words there are may not get worse.
    room = {"statements": 1.01, "core_statements": 1.01}
    worse = {
        name: n for name, n in counted.items() if n > recorded[name] * room.get(name, 1)
    }
    assert not worse, (
        f"more than recorded: {worse}; python -m tests.house NAME lists them"
    )


def test_no_room_has_denser_lines_than_a_reader_takes_in() -> None:
    dense = {room: n for room, n in house.tokens_a_line().items() if n > 9.0}
    assert not dense


def _leads_to_a_file(name: str) -> bool:
    path = ROOT.joinpath(*name.split(".")[name.startswith("ringlight") :])
    return path.with_suffix(".py").exists() or path.is_dir()


def test_what_is_imported_of_ours_is_there() -> None:
    """Wherever it is imported: mypy leaves out tests, and takes a module that is not there for another's."""
    lost = []
    for room in (*ROOMS, "tests", "benchmarks", "docs"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(tree_of(path)):
                module = node.module if isinstance(node, ast.ImportFrom) else None
                ours = module is not None and module.partition(".")[0] in (
                    "ringlight",
                    "tests",
                    "benchmarks",
                )
                if module is not None and ours and not _leads_to_a_file(module):
                    lost.append(f"{path.relative_to(ROOT)}:{node.lineno}: {module}")
    assert not lost, "\n".join(lost)
