"""Models: parameters against published totals, FLOPs and activations against published formulas."""

from __future__ import annotations

import pytest

from ringlight.containers.image import ROOT
from ringlight.extensions.models.catalogue import MODELS, model_named
from ringlight.extensions.models.layers import (
    Recommender,
    Transformer,
    bottom_layers,
    forward_flops,
    layers,
    parameters,
    top_layers,
)

#: torchvision's weights; model cards; for GPT-3 table D.1 of its paper rounds to 174,600 M.
PUBLISHED = {
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet50": 25_557_032,
    "bert-large": 336_226_108,
    "gpt2-medium": 354_823_168,
    "gpt3-175b": 174_604_259_328,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name: str) -> None:
    assert parameters(MODELS[name]) == PUBLISHED[name]


def test_a_rounded_total_is_met_within_its_rounding() -> None:
    """Vaswani et al. give 213 million and a vocabulary of about 37,000."""
    assert parameters(MODELS["transformer-big"]) == pytest.approx(213e6, rel=0.01)


def test_bert_is_counted_with_its_heads() -> None:
    """Without masked words' and next sentence's it is the 335,141,888 that the encoder alone has."""
    bert = MODELS["bert-large"]
    assert isinstance(bert, Transformer)
    h = bert.hidden
    masked_words, next_sentence = h * h + h + 2 * h + bert.vocabulary, 2 * h + 2
    assert parameters(bert) - masked_words - next_sentence == 335_141_888


def test_tables_are_nearly_all_of_a_recommender() -> None:
    model = MODELS["dlrm"]
    assert isinstance(model, Recommender)
    assert len(model.rows) == 26
    assert sum(model.rows) == 204_184_588
    dense = sum(
        layer.parameters for layer in (*bottom_layers(model), *top_layers(model))
    )
    assert top_layers(model)[0].output == 479
    assert parameters(model) == 204_184_588 * 128 + dense
    by_hand = (13 * 512 + 512) + (512 * 256 + 256) + (256 * 128 + 128)
    by_hand += (
        (479 * 1024 + 1024)
        + (1024 * 1024 + 1024)
        + (1024 * 512 + 512)
        + (512 * 256 + 256)
        + 257
    )
    assert dense == by_hand


@pytest.mark.parametrize(
    ("name", "giga"), [("vgg16", 15.47), ("vgg19", 19.632), ("resnet50", 4.089)]
)
def test_flops_of_an_image_are_twice_torchvisions_multiplications(
    name: str, giga: float
) -> None:
    assert forward_flops(MODELS[name]) == pytest.approx(2e9 * giga, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "sequence"),
    [("gpt2-medium", 1024), ("gpt3-175b", 2048), ("gpt3-175b", 512)],
)
def test_flops_of_a_gpt_are_megatrons_formula(name: str, sequence: int) -> None:
    """Narayanan et al.: 96 B s l h^2 (1 + s / 6h + V / 16lh) and activations computed again.

    So that is four forward passes, but three of the output, 2 B s h V each.
    """
    model = MODELS[name]
    assert isinstance(model, Transformer)
    s, n, h, v = sequence, model.layers, model.hidden, model.vocabulary
    four = 96 * s * n * h**2 * (1 + s / (6 * h) + v / (16 * n * h))
    assert 4 * forward_flops(model, sequence) - 2 * s * h * v == pytest.approx(
        four, rel=1e-12
    )


def test_flops_of_gpt3s_training_are_those_of_its_paper() -> None:
    """Table D.1: 3.14e23 for 300 billion tokens, of 6 N a token without the attention's scores."""
    per_token = 3 * forward_flops(MODELS["gpt3-175b"]) / 2048
    assert per_token * 300e9 == pytest.approx(3.14e23, rel=0.03)


@pytest.mark.parametrize(
    ("name", "billions"), [("mixtral-8x7b", 12.9), ("mixtral-8x22b", 39.1)]
)
def test_a_token_passes_the_active_parameters_only(name: str, billions: float) -> None:
    model = MODELS[name]
    assert isinstance(model, Transformer)
    idle = 1 - model.top_k / model.experts
    active = parameters(model) - idle * sum(layer.experts for layer in layers(model))
    assert active == pytest.approx(billions * 1e9, rel=5e-3)


def test_activations_of_a_gpt_are_korthikantis() -> None:
    """34 s b h bytes a block at two bytes an element, without the attention's 5 a s^2 b."""
    model = MODELS["gpt3-175b"]
    blocks = [layer for layer in layers(model) if layer.name.startswith("block 7 ")]
    assert 2 * sum(layer.kept for layer in blocks) == 34 * 2048 * 12288
    assert sum(layer.kept for layer in layers(model)) > 96 * 17 * 2048 * 12288


def test_every_model_says_where_its_figures_stand() -> None:
    assert all(
        "arXiv" in m.source or "model card" in m.source or "Radford" in m.source
        for m in MODELS.values()
    )
    with pytest.raises(ValueError, match="no model vgg17; there are vgg16, "):
        model_named("vgg17")


def test_the_page_has_every_model_with_its_parameters_and_flops() -> None:
    page = (ROOT / "docs/models.md").read_text()
    for name, model in MODELS.items():
        assert (
            f"| `{name}` | {parameters(model):,} | {forward_flops(model):.4g} |" in page
        )
