"""Ringlight: an SDN controller, emulator and simulator for optical interconnects in distributed training.

    import ringlight as rl

    fabric = rl.leaf_spine(2, 3, "40 Gbit/s", oversubscription=3, ocs=True)
    study = rl.Study(fabric, {"red": rl.training(ranks="g0 g3 g1 g4"), "blue": rl.training(ranks="g2 g5")})
    study.arm("fragmented").arm("regrouped", events=[rl.regroup()])
    runs = study.simulate()
    runs.plot("iteration", by="arm")

Everything that a script needs is named here, and loaded when it is used. The rooms of the source are folders
at the top of the repository, to which the links beside this file lead; an installed Ringlight has them here.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringlight.experiments.analysis.rows import Row as Row
    from ringlight.experiments.backends.protocol import BackendError as BackendError
    from ringlight.experiments.client import ApiError as ApiError
    from ringlight.experiments.language.text import ScenarioError as ScenarioError
    from ringlight.experiments.record.writing import WriteError as WriteError
    from ringlight.experiments.scripting.parts import event as event
    from ringlight.experiments.scripting.parts import fat_tree as fat_tree
    from ringlight.experiments.scripting.parts import leaf_spine as leaf_spine
    from ringlight.experiments.scripting.parts import regroup as regroup
    from ringlight.experiments.scripting.parts import training as training
    from ringlight.experiments.scripting.parts import workload as workload
    from ringlight.experiments.scripting.runs import Runs as Runs
    from ringlight.experiments.scripting.runs import open as open
    from ringlight.experiments.scripting.scripted_lab import Lab as Lab
    from ringlight.experiments.scripting.scripted_lab import lab as lab
    from ringlight.experiments.scripting.study import Study as Study
    from ringlight.experiments.scripting.study import example as example
    from ringlight.experiments.scripting.study import load as load
    from ringlight.testbed.lab import LabError as LabError

    __version__: str

#: The folder that holds this package: what another Python needs in PYTHONPATH.
IMPORT_PATH = Path(__file__).resolve().parents[1]
#: Module and name of everything that scripts use, by its name here.
_PLACES = {
    "ApiError": ("experiments.client", "ApiError"),
    "BackendError": ("experiments.backends.protocol", "BackendError"),
    "Lab": ("experiments.scripting.scripted_lab", "Lab"),
    "LabError": ("testbed.lab", "LabError"),
    "Row": ("experiments.analysis.rows", "Row"),
    "Runs": ("experiments.scripting.runs", "Runs"),
    "ScenarioError": ("experiments.language.text", "ScenarioError"),
    "Study": ("experiments.scripting.study", "Study"),
    "WriteError": ("experiments.record.writing", "WriteError"),
    "event": ("experiments.scripting.parts", "event"),
    "example": ("experiments.scripting.study", "example"),
    "fat_tree": ("experiments.scripting.parts", "fat_tree"),
    "lab": ("experiments.scripting.scripted_lab", "lab"),
    "leaf_spine": ("experiments.scripting.parts", "leaf_spine"),
    "load": ("experiments.scripting.study", "load"),
    "open": ("experiments.scripting.runs", "open"),
    "regroup": ("experiments.scripting.parts", "regroup"),
    "training": ("experiments.scripting.parts", "training"),
    "workload": ("experiments.scripting.parts", "workload"),
}
__all__ = [*_PLACES, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("ringlight")
    if name not in _PLACES:
        raise AttributeError(
            f"module ringlight has no {name}; it has {', '.join(sorted(_PLACES))}"
        )
    module, attribute = _PLACES[name]
    return getattr(import_module(f"ringlight.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
