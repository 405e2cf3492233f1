"""Several clients change light over all protocols while processes are killed, frozen and broken.

`tests/light_model.py` says what may come of it. Each run draws a seed, and has 300 operations. For an hour:

    ./ringlight test tests/integration/test_random_light.py --fuzz 60
"""

from __future__ import annotations

import logging
import random
import time

import pytest

from tests.light_rig import LightRig
from tests.random_light import Report, Walk

pytestmark = pytest.mark.root

log = logging.getLogger(__name__)

FILE = "tests/integration/test_random_light.py"


def walked(seed: int, operations: int) -> Report:
    rig = LightRig()
    try:
        walk = Walk(rig, seed)
        try:
            return walk.run(operations)
        finally:
            walk.close()
    finally:
        rig.close()


@pytest.mark.fuzz
def test_light_is_never_otherwise_than_the_model_allows(
    request: pytest.FixtureRequest,
) -> None:
    seed = request.config.getoption("--light-seed")
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 32)
    operations = request.config.getoption("--light-operations")
    if operations is None:
        operations = 300 if request.config.getoption("--fuzz") is None else 2000
    began = time.monotonic()
    report = walked(seed, operations)
    log.info(
        "light seed %d: %d operations, %d rests, %d divergences in %.0f s; %s; %s",
        *(
            seed,
            report.operations,
            report.rests,
            len(report.divergences),
            time.monotonic() - began,
        ),
        *(dict(report.answers), dict(report.mishaps)),
    )
    again = (
        f"./ringlight test {FILE} --light-seed {seed} --light-operations {operations}"
    )
    assert not report.divergences, f"again with\n    {again}\n" + "\n\n".join(
        report.divergences
    )
    assert report.operations >= operations
