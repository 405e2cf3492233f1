"""Models from which workloads are generated, each with the source of its figures.

Totals of parameters are computed (``layers.parameters``) and tested against those published.
They are equal except for Transformer-big, whose vocabulary its paper gives as "about 37000"; see
``docs/models.md``.
"""

from __future__ import annotations

from ringlight.extensions.models.layers import (
    Convolution,
    Model,
    Recommender,
    Transformer,
    Vision,
)


def _vgg(name: str, column: str, convolutions: tuple[int, ...]) -> Vision:
    """3 x 3 convolutions with bias in five stages, halved by pooling after each, then three full layers."""
    stack, inputs, block = [], 3, 0
    for stage, (count, width) in enumerate(
        zip(convolutions, (64, 128, 256, 512, 512), strict=True)
    ):
        for number in range(count):
            stack.append(
                Convolution(
                    f"conv{stage + 1}_{number + 1}",
                    inputs,
                    width,
                    3,
                    1,
                    224 >> stage,
                    1,
                    block,
                )
            )
            inputs, block = width, block + 1
    for number, (width, wide) in enumerate(
        ((512 * 7 * 7, 4096), (4096, 4096), (4096, 1000))
    ):
        stack.append(
            Convolution(f"fc{6 + number}", width, wide, 1, 1, 1, 1, block + number)
        )
    return Vision(
        name,
        f"Simonyan, Zisserman, arXiv:1409.1556, table 1, column {column}",
        tuple(stack),
    )


def _resnet50() -> Vision:
    """Bottlenecks with batch normalisation, as torchvision has them: the stride is in the 3 x 3."""
    convolutions = [Convolution("conv1", 3, 64, 7, 2, 112, 2, 0)]
    inputs, block = 64, 1
    for stage, (count, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        pixels = 56 >> stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            name = f"conv{stage + 2}_{number + 1}"
            convolutions.append(
                Convolution(f"{name}a", inputs, width, 1, 1, pixels * stride, 2, block)
            )
            convolutions.append(
                Convolution(f"{name}b", width, width, 3, stride, pixels, 2, block)
            )
            convolutions.append(
                Convolution(f"{name}c", width, 4 * width, 1, 1, pixels, 2, block)
            )
            if not number:
                convolutions.append(
                    Convolution(
                        f"{name}s", inputs, 4 * width, 1, stride, pixels, 2, block
                    )
                )
            inputs, block = 4 * width, block + 1
    convolutions.append(Convolution("fc", 2048, 1000, 1, 1, 1, 1, block))
    source = (
        "He et al., arXiv:1512.03385, table 1; stride as torchvision.models.resnet50"
    )
    return Vision("resnet50", source, tuple(convolutions))


def _gpt(
    name: str, source: str, layers: int, hidden: int, heads: int, sequence: int
) -> Transformer:
    return Transformer(
        name, source, layers, hidden, heads, heads, 4 * hidden, 50257, sequence,
        positions=sequence, tied=True, dropout=True,
    )  # fmt: skip


def _llama(
    name: str, source: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int,
    vocabulary: int, sequence: int, experts: int = 1, top_k: int = 1,
) -> Transformer:  # fmt: skip
    return Transformer(
        name, source, layers, hidden, heads, kv_heads, ffn, vocabulary, sequence,
        experts=experts, top_k=top_k, gated=True, biases=False, norm_parameters=1,
    )  # fmt: skip


_GPT2 = "Radford et al., Language Models are Unsupervised Multitask Learners, table 2"
_GPT3 = (
    "Brown et al., arXiv:2005.14165, table 2.1; attention is dense here in each layer"
)
_LLAMA2 = (
    "Touvron et al., arXiv:2307.09288, table 1; widths of its model card's params.json"
)
_LLAMA3 = "Dubey et al., arXiv:2407.21783, table 3; vocabulary of the model card"
_MIXTRAL = "Jiang et al., arXiv:2401.04088, table 1"

_MODELS: tuple[Model, ...] = (
    _vgg("vgg16", "D", (2, 2, 3, 3, 3)),
    _vgg("vgg19", "E", (2, 2, 4, 4, 4)),
    _resnet50(),
    # Attention's biases are those of the original code's successors; the paper's own total is rounded.
    Transformer(
        "transformer-big", "Vaswani et al., arXiv:1706.03762, table 3, row big; vocabulary section 5.1; "
        "sentences of 64 tokens are assumed", 6, 1024, 16, 16, 4096, 37000, 64,
        encoder_layers=6, tied=True, dropout=True,
    ),
    Transformer(
        "bert-large", "Devlin et al., arXiv:1810.04805, section 3; vocabulary of bert-large-uncased",
        24, 1024, 16, 16, 4096, 30522, 512, positions=512, tied=True, bert=True, dropout=True,
    ),
    _gpt("gpt2-medium", _GPT2, 24, 1024, 16, 1024),
    _gpt("gpt3-175b", _GPT3, 96, 12288, 96, 2048),
    _llama("llama2-7b", _LLAMA2, 32, 4096, 32, 32, 11008, 32000, 4096),
    _llama("llama2-13b", _LLAMA2, 40, 5120, 40, 40, 13824, 32000, 4096),
    _llama("llama2-70b", _LLAMA2, 80, 8192, 64, 8, 28672, 32000, 4096),
    _llama("llama3-8b", _LLAMA3, 32, 4096, 32, 8, 14336, 128256, 8192),
    _llama("llama3-70b", _LLAMA3, 80, 8192, 64, 8, 28672, 128256, 8192),
    _llama("mixtral-8x7b", _MIXTRAL, 32, 4096, 32, 8, 14336, 32000, 32768, 8, 2),
    _llama(
        "mixtral-8x22b", "model card and config.json of Mixtral-8x22B-v0.1 (its vocabulary is 32,000, that "
        "of the instructed one 32,768)", 56, 6144, 48, 8, 16384, 32000, 65536, 8, 2,
    ),
    Recommender(
        "dlrm",
        "Naumov et al., arXiv:1906.00091; MLPerf Training 0.7 to 2.1: Criteo Terabyte, up to 40,000,000 rows",
        (
            40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282,
            10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36,
        ),
        128, (13, 512, 256, 128), (1024, 1024, 512, 256, 1),
    ),
)  # fmt: skip

#: By name.
MODELS = {model.name: model for model in _MODELS}


def model_named(name: str) -> Model:
    """Return the model of a name. Raises ValueError, listing the known models, for another name."""
    if name not in MODELS:
        raise ValueError(f"no model {name}; there are {', '.join(MODELS)}")
    return MODELS[name]
