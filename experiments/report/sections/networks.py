"""Networks of averagers: two of the meshes of interferometers that the trained one is made of."""

from __future__ import annotations

from matplotlib.figure import Figure

from ringlight.experiments.report.interferometers import pictured
from ringlight.experiments.report.page import text
from ringlight.experiments.report.view import Draw, View
from ringlight.fabric.optinc.imperfect import Full, OnMeshes, Squares
from ringlight.fabric.optinc.mesh import Mesh
from ringlight.fabric.planes.averagers.photonics import trained_meshes

ORDER = 18
TITLE = "An averager's network"
#: Modes of the larger of the meshes that are drawn; more cannot be seen.
_LARGEST = 64


def wanted(view: View) -> OnMeshes | None:
    """The first network with trained weights."""
    found = (meshes for plan in view.experiment.plans for meshes in trained_meshes(plan.setting.fabric))
    return next(found, None)


def render(view: View, draw: Draw) -> str:
    found = wanted(view)
    assert found is not None
    layers = "; ".join(f"layer {k}: {_made_of(layer)}" for k, layer in enumerate(found.layers, 1))
    caption = (
        "Two meshes of the trained network. Matrices are real, so all phases but θ are 0 or π. A crossing is "
        "an interferometer."
    )
    return f"<p>Meshes: {text(layers)}.</p>{draw('meshes', caption, _figure, found)}"


def _made_of(layer: Squares | Full) -> str:
    if isinstance(layer, Full):
        return f"one of {layer.first.modes} and one of {layer.second.modes} modes"
    return f"{len(layer.meshes)} of {layer.meshes[0].modes} modes"


def _figure(found: OnMeshes) -> Figure:
    meshes = [
        (number, mesh)
        for number, layer in enumerate(found.layers, 1)
        for mesh in (layer.meshes[:1] if isinstance(layer, Squares) else (layer.first,))
        if mesh.modes <= _LARGEST
    ]
    small, large = (pick(meshes, key=lambda one: one[1].modes) for pick in (min, max))
    return pictured(small[1], large[1], (_title(*small), _title(*large)))


def _title(layer: int, mesh: Mesh) -> str:
    side, count = mesh.modes, mesh.modes * (mesh.modes - 1) // 2
    return f"Layer {layer}, a square of {side} × {side}: {count:,} interferometers"
