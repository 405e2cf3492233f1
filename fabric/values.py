"""Values in fabric files: quantities with units, names, and what several sections have in common."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ringlight.fabric.parts import Wss
from ringlight.fabric.units import parse_rate, parse_size, parse_time


class Strict(BaseModel):
    """Unknown keys are errors; a checked object does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _quantity(parse: object) -> BeforeValidator:
    def check(value: object) -> object:
        if not isinstance(value, str):
            raise ValueError(
                f"{value!r} has no unit; write for example '40 Gbit/s', '25 ms', '1 MB'"
            )
        return parse(value)  # type: ignore[operator]

    return BeforeValidator(check)


Rate = Annotated[float, _quantity(parse_rate), Field(gt=0)]
Duration = Annotated[float, _quantity(parse_time), Field(ge=0)]
Size = Annotated[int, _quantity(parse_size), Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,11}$")]


Loss = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Power = Annotated[float, Field(allow_inf_nan=False)]


class WssSpec(Strict):
    """Kind of a plane's wavelength-selective switches, with the keys of optical switches."""

    driver: Literal["scpi"] = "scpi"
    profile: str
    loss_db: Loss | None = None
    dark: Duration | None = None

    def made(self) -> Wss:
        return Wss(self.driver, self.profile, self.loss_db, self.dark)


#: How the tags begin by which pydantic tells sections of one key from each other.
KIND_TAG = "kind-"

#: How a problem begins that names its key.
_KEYED = re.compile(r"[^\s:.\[\]]+(\.[^\s:.\[\]]+|\[\d+\])*: ")


def under(where: str, problem: object) -> str:
    """Return a problem of the section ``where`` as ``path: sentence``.

    Most problems name a key of the section, others are a sentence about all of it.
    """
    text = str(problem)
    return f"{where}.{text}" if _KEYED.match(text) else f"{where}: {text}"
