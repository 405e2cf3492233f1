"""The training of a unit's network: the paper's loss (Eq. 7), and what the paper does not say.

For E1 epochs the loss is the mean over inputs of sum_i W_T,i (O_i - O*_i)^2, each output beside its symbol;
afterwards that of (G - G*)^2, the number that the outputs are. E1, W_T, optimiser, rate, batch, length, seeds
and biases are not in the paper; every one is a field of :class:`Recipe`, and its value is ours. Nor is what G
is where outputs are no whole numbers; both readings unlearn symbols that were right (docs/optinc-network.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from ringlight.extensions.optinc.onn.layers import (
    Exact,
    OnnLayer,
    Projected,
    Retracted,
    layers_of,
)
from ringlight.extensions.optinc.unit.averaging import combination, goals, to_outputs
from ringlight.extensions.optinc.unit.network import Network, light
from ringlight.extensions.optinc.unit.pam4 import LEVELS
from ringlight.extensions.optinc.unit.structure import Structure

FORMS: Mapping[str, type[OnnLayer]] = {
    "exact": Exact,
    "retraction": Retracted,
    "projection": Projected,
}
#: Inputs come as light of 0 to 4^g - 1. Training has them from -SPAN to SPAN; shift and scale become part of
#: the first layer in the end.
SPAN = 1.5


@dataclass(frozen=True)
class Recipe:
    """Settings of a training.

    method          ``exact``: Sigma U at each step; ``retraction``: almost; ``projection``: every
                    ``project_every`` steps; all of them when training ends
    seed            of the drawn weights and of the order of inputs
    epochs          passes over all inputs
    first           E1, epochs of the first stage of the loss
    symbol_weights  W_T, one for each output
    second          what G is in the second stage: of the outputs as they are (``light``), or as a receiver
                    reads them (``received``: an input that is read right teaches nothing, one that is not has
                    the gradient of its error in G through every output)
    biases          which layers have one: a bias is light that always shines
    start           of the first layer: ``spread``, all units see all inputs, or ``grid``, each sees one input
                    and its ReLU begins at one of the values that this has
    spared          levels: by how much less outputs are off in the first stage's loss, at least 0; it grows
                    from 0 in the first half of the training, so that what is read right teaches less
    rate            the largest of Adam's, which goes up to it and down again (one cycle)
    """

    method: Literal["exact", "retraction", "projection"]
    seed: int
    epochs: int
    first: int
    symbol_weights: tuple[float, ...]
    second: Literal["light", "received"] = "light"
    biases: Literal["all", "first"] = "all"
    batch: int = 512
    rate: float = 6e-3
    project_every: int = 28
    start: Literal["spread", "grid"] = "spread"
    spared: float = 0.0


def dataset(structure: Structure) -> tuple[Tensor, Tensor]:
    """Return every input A_k (n, K) and the symbols (n, M) of its goal, float32."""
    coding = structure.coding
    inputs = light(combination(np.arange(coding.combinations), coding), coding)
    symbols = to_outputs(goals(coding), coding)
    return torch.from_numpy(inputs).float(), torch.from_numpy(symbols).float()


def symbol_loss(
    outputs: Tensor, goal: Tensor, weights: Tensor, spared: float = 0.0
) -> Tensor:
    """Return the loss of Eq. 7, first stage: outputs (n, M) against their symbols, weighted by W_T (M,).

    Each output counts as off by ``spared`` less.
    """
    return (nn.functional.softshrink(outputs - goal, spared) ** 2 @ weights).mean()


def value_loss(outputs: Tensor, goal: Tensor, received: bool) -> Tensor:
    """Return the loss of Eq. 7, second stage: the numbers that outputs (n, M) stand for, against those of
    the goal."""
    if received:
        outputs = outputs + (outputs.clamp(0, LEVELS - 1).round() - outputs).detach()
    places = LEVELS ** torch.arange(outputs.shape[1] - 1, -1, -1, dtype=outputs.dtype)
    return (((outputs - goal) @ places) ** 2).mean()


def train(
    structure: Structure, recipe: Recipe, report: Callable[[int, float], None]
) -> Network:
    """Return the trained network, float32, its matrices in the structure's form.

    ``report`` is called with the number of finished epochs and the mean loss of the last one. Raises
    ValueError if the number of weights differs from that of outputs, if a matrix cannot be cut into squares,
    or if the first layer cannot have this start.
    """
    if len(recipe.symbol_weights) != structure.coding.symbols:
        raise ValueError(
            f"{len(recipe.symbol_weights)} weights for {structure.coding.symbols} symbols"
        )
    generator = torch.Generator().manual_seed(recipe.seed)
    inputs, goal = dataset(structure)
    middle = float(inputs.max()) / 2
    inputs = (inputs - middle) * (SPAN / middle)
    layers = layers_of(structure, FORMS[recipe.method], recipe.biases, generator)
    if recipe.start == "grid":
        _on_grid(layers[0], structure, generator)
    else:
        _spread(layers[0], generator)
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))[
        :-1
    ]
    steps = recipe.epochs * math.ceil(len(inputs) / recipe.batch)
    optimiser = torch.optim.Adam(model.parameters(), lr=recipe.rate)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, recipe.rate, total_steps=steps, pct_start=0.1
    )
    weights = torch.tensor(recipe.symbol_weights)
    project_every = 1 if recipe.method == "retraction" else recipe.project_every
    step = 0
    for epoch in range(recipe.epochs):
        total = 0.0
        for chosen in torch.randperm(len(inputs), generator=generator).split(
            recipe.batch
        ):
            outputs = model(inputs[chosen])
            if epoch < recipe.first:
                spared = recipe.spared * min(1.0, 2 * step / steps)
                loss = symbol_loss(outputs, goal[chosen], weights, spared)
            else:
                loss = value_loss(outputs, goal[chosen], recipe.second == "received")
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            cycle.step()
            total += loss.item() * len(chosen)
            step += 1
            if step % project_every == 0:
                for layer in layers:
                    layer.project()
        report(epoch + 1, total / len(inputs))
    return _network(layers, middle)


def _spread(first: OnnLayer, generator: torch.Generator) -> None:
    """The kinks of the first ReLUs all over the inputs: a start from which the network learns faster."""
    first.scale(0.7)
    assert first.bias is not None
    first.bias.data = (torch.rand(first.shape[0], generator=generator) - 0.5) * 3.5


def _on_grid(first: OnnLayer, structure: Structure, generator: torch.Generator) -> None:
    """Each unit of the first layer sees one input. Its ReLU begins at one of this input's values, evenly from
    the first to the last, and goes up or down. The first input has the most units: most depends on it.
    """
    if 1 in structure.approximated:
        raise ValueError(
            "the first layer is approximated: its units cannot see one input each"
        )
    assert first.bias is not None
    outputs, inputs = first.shape
    shares = np.full(inputs, outputs * 3 // 16)
    shares[0] = outputs - shares[1:].sum()
    seen = torch.from_numpy(np.repeat(np.arange(inputs), shares))
    values = structure.coding.input_values
    begins = np.concatenate(
        [
            np.linspace(0, many - 1, share).round() / (many - 1)
            for many, share in zip(values, shares, strict=True)
        ]
    )
    signs = torch.randint(0, 2, (outputs,), generator=generator) * 2.0 - 1
    first.weight.data = nn.functional.one_hot(seen, inputs) * signs[:, None]
    first.bias.data = -signs * torch.from_numpy((2 * begins - 1) * SPAN).float()


def _network(layers: list[OnnLayer], middle: float) -> Network:
    """Return the trained network, with the inputs' shift and scale taken into the first layer."""
    matrices = [layer.final() for layer in layers]
    biases = [
        torch.zeros(layer.shape[0]).double()
        if layer.bias is None
        else layer.bias.detach().double()
        for layer in layers
    ]
    matrices[0] = matrices[0] * (SPAN / middle)
    biases[0] = biases[0] - matrices[0].sum(1) * middle
    return Network(
        tuple(matrix.float().numpy() for matrix in matrices),
        tuple(bias.float().numpy() for bias in biases),
    )
