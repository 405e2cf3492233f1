"""Cost of a training step of a known model: gradient size and GPU time.

Parameter counts are those of torchvision. GPU times are forward + backward for a minibatch of 16 images of
224 x 224 pixels with cuDNN 5.1.05 (jcjohnson/cnn-benchmarks@2ee75e2 README.md). No public table has the Tesla
M40; the Maxwell Titan X has the same GM200 chip and stands in for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringlight.workloads.devices import DEVICES
from ringlight.workloads.job_settings import LIMITS

#: Images in one minibatch of the timing table.
TIMED_BATCH = 16
#: Bytes of one FP32 gradient element.
ELEMENT_BYTES = 4
#: Least bytes of a gradient: the model that is really trained has to fit (containers/worker/model.py).
LEAST_GRADIENT_BYTES = LIMITS["gradient_bytes"].least


@dataclass(frozen=True)
class ModelProfile:
    """``parameters``: count. ``step_s``: seconds for forward + backward of 16 samples, by GPU model."""

    parameters: int
    step_s: dict[str, float]

    @property
    def gradient_bytes(self) -> int:
        """Return the bytes of one FP32 gradient."""
        return self.parameters * ELEMENT_BYTES


MODELS = {
    "vgg16": ModelProfile(
        138_357_544,
        {"maxwell-titan-x": 0.192_78, "gtx-1080": 0.182_79, "pascal-titan-x": 0.128_62},
    ),
    "resnet50": ModelProfile(
        25_557_032,
        {"maxwell-titan-x": 0.159_62, "pascal-titan-x": 0.103_58},
    ),
}


def unknown_gpus(models: Iterable[str]) -> list[str]:
    """Return the models of GPUs of which no table has a time or a rate, in order; ``gpu`` is no model."""
    known = {
        "gpu",
        *DEVICES,
        *(gpu for profile in MODELS.values() for gpu in profile.step_s),
    }
    return sorted(set(models) - known)


def compute_seconds(model: str, gpu: str, batch: int) -> float:
    """Return the GPU seconds of one step of ``batch`` samples, linear in the batch.

    Raises ValueError naming the GPUs that the table has if ``gpu`` is not one of them.
    """
    times = MODELS[model].step_s
    if gpu not in times:
        raise ValueError(
            f"no GPU time of {model} on {gpu}; the table has {', '.join(times)}"
        )
    return times[gpu] * batch / TIMED_BATCH


def scaled_gradient_bytes(model: str, payload_scale: float) -> int:
    """Return the bytes that the emulation all-reduces: the FP32 gradient over S, up to a whole element."""
    elements = -(-MODELS[model].gradient_bytes // (ELEMENT_BYTES * payload_scale))
    return int(elements) * ELEMENT_BYTES
