"""The golden matrix: what every arm of every bundled scenario is told, what it takes, and its light.

Of each arm: what its file's ``check`` says, why the emulation or the simulation refuses it, all figures of
its simulation, and of an arm that is emulated what the controller is asked for and the light that it plans.
Sweeps are left out, so an arm has the values that its file has without them. Written anew by

    .venv/bin/python -m tests.matrix [NAME…]
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from pydantic import TypeAdapter

from ringlight.containers.image import ROOT
from ringlight.controller.errors import ConflictError, InvalidError
from ringlight.controller.jobs.reservation import placed, planes_for
from ringlight.controller.light.provider import Provider, providers
from ringlight.experiments.analysis.carrying import MEASURED
from ringlight.experiments.analysis.result import analyse
from ringlight.experiments.analysis.scaling import choose_scale
from ringlight.experiments.backends.emulation.requests import job_request
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.plan import ChosenScale, JobPlan, RunPlan
from ringlight.experiments.language.text import parse_yaml
from ringlight.experiments.record.events import Record, RunFailed
from ringlight.experiments.runner.check_document import check_document
from ringlight.experiments.runner.experiment import run_alone
from ringlight.fabric.keys import plugged
from ringlight.fabric.topology import Fabric
from tests.lights import light_context
from tests.scenario_notes import notes_of

FOLDER = ROOT / "tests" / "golden" / "matrix"
#: What a file says of more runs than those of its arms as they are.
OF_SWEEPS = ("sweep", "search", "published", "crossover", "break_even", "compare")


def scenarios() -> dict[str, Path]:
    """All bundled scenario files by name."""
    folders = (ROOT / "scenarios", ROOT / "scenarios" / "examples")
    return {
        path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))
    }


def goldens() -> dict[str, Path]:
    """The documents as they were, by scenario: an extension's are among its tests."""
    folders = (FOLDER, *sorted(ROOT.glob("tests/extensions/*/golden/matrix")))
    return {path.stem: path for folder in folders for path in folder.glob("*.json")}


def loaded(path: Path) -> Experiment:
    raw = parse_yaml(path.read_text(), str(path))
    raw = {key: value for key, value in raw.items() if key not in OF_SWEEPS}
    for parameter in raw.get("parameters", {}).values():
        parameter.pop("fitted_to", None)
    less, fabrics = notes_of(path.stem).less, raw.get("fabrics", ())
    sets = list(
        dict.fromkeys(line.replace("*", name) for line in less for name in fabrics)
    )
    return parse(
        yaml.safe_dump(raw, sort_keys=False),
        str(path),
        repeat=1,
        sets=sets,
        scale_for=on_reference,
    )


def on_reference(plans: Sequence[RunPlan]) -> ChosenScale:
    """The scale of the machine whose costs are in the sources, which are the same everywhere."""
    return choose_scale(plans, MEASURED, 2)


def matrix_of(path: Path) -> dict[str, Any]:
    """The document of one scenario file."""
    experiment = loaded(path)
    return document_of(experiment, simulated(experiment, path.stem))


def simulated(experiment: Experiment, name: str) -> dict[str, list[Record]]:
    """Records of every arm that is simulated."""
    backend, found = SimulationBackend(), {}
    for plan in experiment.plans:
        if plan.arm in notes_of(name).alike or backend.refuses(plan) is not None:
            continue
        batches, single = backend.batches([plan])
        records = [record for batch in batches for record in batch.compute()]
        for one in single:
            records += run_alone(backend, one)[0]
        found[plan.arm] = records
    return found


def document_of(
    experiment: Experiment, records: Mapping[str, list[Record]]
) -> dict[str, Any]:
    """The document of a scenario, from the records of its arms."""
    said = check_document(experiment)
    arms = {
        plan.arm: {
            "check": {
                key: said["arms"][plan.arm][key]
                for key in ("refused", "events", "carried")
            },
            **(_figures(experiment, records[plan.arm]) if plan.arm in records else {}),
            **_emulated(plan, said["arms"][plan.arm]["refused"]),
        }
        for plan in experiment.plans
    }
    return {"fabrics": _digest(_filled(said["fabrics"])), "arms": arms}


def _filled(fabrics: Mapping[str, Mapping[str, Any]]) -> Any:
    """Fabrics without lists that hold nothing, as an extension adds one of its own to every fabric."""
    return {
        name: {key: value for key, value in part.items() if value != []}
        for name, part in fabrics.items()
    }


def _figures(experiment: Experiment, records: list[Record]) -> dict[str, Any]:
    failed = [record.reason for record in records if isinstance(record, RunFailed)]
    figures: dict[str, dict[str, Any]] = {}
    for row in analyse(experiment, records, "simulated").rows:
        figures.setdefault(row.subject, {})[f"{row.metric} {row.label}"] = row.value
    return {"simulated": figures, **({"failed": failed} if failed else {})}


def _emulated(plan: RunPlan, refused: Mapping[str, str]) -> dict[str, Any]:
    if "emulation" in refused:
        return {}
    fabric = plugged(plan.setting.fabric)
    jobs: dict[str, Any] = {}
    for job in plan.jobs:
        request = job_request(plan, job)
        light = {
            kind: _digest(document) for kind, document in _lights(fabric, job, request)
        }
        if name := request.pop("plane", None):
            request[job.plane(fabric).kind] = name
        jobs[job.name] = {"request": _digest(request), "light": light}
    return {"emulated": jobs}


def _lights(
    fabric: Fabric, job: JobPlan, request: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """What each provider would light for a job that nothing else is beside, by its kind."""
    wanted = request.get("ranks") or request["gpus"]
    nowhere: Any = SimpleNamespace(entries={})
    context = light_context(
        fabric, nowhere, circuits=nowhere, workload=lambda _: job.workload
    )
    lights = {provider.kind: provider(context) for provider in providers()}
    for plane in planes_for(fabric, wanted, request.get("plane")):
        provider = lights[plane.kind]
        try:
            nodes = placed(plane, wanted, {}, alone=provider.alone)
            light = provider.plan(plane, nodes, request)
        except (InvalidError, ConflictError) as error:
            yield plane.kind, str(error)
        else:
            yield plane.kind, _planned(provider, light)
    for more in _of_extensions():
        yield from more(fabric, job)


@cache
def _of_extensions() -> list[Callable[[Fabric, JobPlan], Iterator[tuple[str, Any]]]]:
    """Functions ``planned`` of the modules ``matrix`` among the tests of extensions: more of a job."""
    files = sorted(ROOT.glob("tests/extensions/*/matrix.py"))
    return [
        import_module(f"tests.extensions.{file.parent.name}.matrix").planned
        for file in files
    ]


def _planned(provider: Provider[Any], light: Any) -> dict[str, Any]:
    """A plan with its plane under the name of its kind, and a grid's light under its switches."""
    found = TypeAdapter(Any).dump_python(provider.plan_document(light), mode="json")
    found[found.pop("kind")] = found.pop("plane")
    if "cross_connects" in found:
        found["switches"] = found.pop("cross_connects")
    return found


def _digest(document: Any) -> Any:
    """A text as it is; of anything else what tells it from others but by rounding."""
    if isinstance(document, str):
        return document
    rounded = json.loads(
        json.dumps(document), parse_float=lambda text: f"{float(text):.9g}"
    )
    return hashlib.sha256(json.dumps(rounded, sort_keys=True).encode()).hexdigest()[:16]


def written(document: Mapping[str, Any]) -> str:
    """A document as it stands in the folder: an arm's parts a line each."""
    arms = ",\n".join(
        f"{json.dumps(arm)}: {{\n"
        + ",\n".join(
            f"{json.dumps(key)}: {json.dumps(value)}" for key, value in parts.items()
        )
        + "\n}"
        for arm, parts in document["arms"].items()
    )
    return f'{{"fabrics": {json.dumps(document["fabrics"])}, "arms": {{\n{arms}\n}}}}\n'


def main(names: Sequence[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, path in scenarios().items():
        if not names or name in names:
            goldens().get(name, FOLDER / f"{name}.json").write_text(
                written(matrix_of(path))
            )


if __name__ == "__main__":
    main(sys.argv[1:])
