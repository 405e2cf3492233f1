"""Values of a plan, in emulated units, from those of a file's sections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ringlight.experiments.language.plan import Costs, EventPlan, Scale, Target, When
from ringlight.experiments.language.profiles import (
    ELEMENT_BYTES,
    LEAST_GRADIENT_BYTES,
    MODELS,
    scaled_gradient_bytes,
)
from ringlight.experiments.language.spec import (
    ControlSpec,
    CostsSpec,
    EventSpec,
    TrainingSpec,
)
from ringlight.experiments.language.text import at_key
from ringlight.fabric.control_faults import ControlFaults
from ringlight.fabric.link_effects import dilated
from ringlight.fabric.planes.choice import plane_of
from ringlight.fabric.topology import Fabric


def gradient_bytes_of(training: TrainingSpec, scale: Scale, where: str) -> int:
    """Return the emulated bytes of a gradient, a whole number of elements. Raises ValueError."""
    if training.gradient is None:
        model_bytes = scaled_gradient_bytes(training.model, scale.payload)
        real = MODELS[training.model].gradient_bytes
    else:
        real = training.gradient
        model_bytes = (
            max(1, round(real / scale.payload / ELEMENT_BYTES)) * ELEMENT_BYTES
        )
    if model_bytes < LEAST_GRADIENT_BYTES:
        raise ValueError(
            f"scale.payload: {scale.payload:g} leaves {model_bytes} bytes of the {real} byte gradient"
            f"{f' ({where}.training.gradient)' if where else ''}; the model that is trained needs "
            f"{LEAST_GRADIENT_BYTES}"
        )
    return model_bytes


def compute_s_of(training: TrainingSpec, where: str) -> float:
    """Return the seconds of an iteration's computation. Raises ValueError naming the key."""
    with at_key(f"{f'{where}.' if where else ''}training.gpu"):
        return training.compute_s


def iterations_of(training: TrainingSpec, world_size: int) -> int:
    """Return the iterations as stated, else as many as pass over the data once."""
    if training.iterations is not None:
        return training.iterations
    assert training.samples is not None
    return math.ceil(training.samples / (training.batch * world_size))


def collective_of(
    name: str, fabric: Fabric, ranks: Sequence[str], world_size: int
) -> str:
    """Return a collective as the plane that carries it has it."""
    try:
        plane = plane_of(fabric, ranks)
    except ValueError:
        # What is wrong with the ranks is said where they are checked.
        return name
    return plane.fit.fitted(name, world_size)


def costs_of(costs: CostsSpec, headers: bool, scale: Scale) -> Costs:
    """Return what bytes cost besides the rates of links; ``headers``: whether these count."""
    return Costs(
        None if costs.latency is None else costs.latency * scale.time,
        costs.segment * scale.time,
        None if costs.addition is None else costs.addition / scale.rate,
        headers,
    )


def faults_of(faults: ControlSpec, scale: Scale) -> ControlFaults:
    """Return the faults of the control network. Raises ValueError."""
    return ControlFaults(
        faults.delay * scale.time, faults.loss, faults.duplicate, faults.reorder
    )


def longest_queue_s(fabric: Fabric) -> float:
    """Return how long the longest queue of a link lasts, seconds; 0 without links."""
    return max((link.queue_s for link in fabric.links), default=0.0)


def with_ports(event: EventPlan, fabric: Fabric) -> EventPlan:
    """Return an event with the ports of a link that it names by its nodes."""
    target = event.target
    if (
        target is None
        or target.kind != "link"
        or any(":" in name for name in target.names)
    ):
        return event
    link = fabric.link_between(*target.names)
    return replace(event, target=Target("link", (str(link.a), str(link.b))))


def event_of(name: str, event: EventSpec, scale: Scale) -> EventPlan:
    """Return the plan of an event. Raises ValueError naming the key."""
    when = event.when
    with at_key(f"events.{name}.control"):
        control = None if event.control is None else faults_of(event.control, scale)
    return EventPlan(
        name,
        When(
            when.start,
            None if when.at is None else when.at * scale.time,
            when.job,
            when.iteration,
            when.started,
            when.ended,
            when.after,
            when.granted,
        ),
        event.do,
        event.target,
        event.back_after * scale.time,
        event.jobs,
        event.then,
        event.circuits,
        control,
        dilated(event.effects, scale.time),
    )
