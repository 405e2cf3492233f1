"""The client of a lab's fault service, with a name for each kind of fault that tests ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlight.testbed import faults


class FaultClient(faults.FaultClient):
    """Each method gives the fault's id."""

    def cut(self, a: str, b: str, *, back_after_s: float | None = None) -> str:
        return self.ask("cut", f"link {a} {b}", back_after_s=back_after_s)

    def lose(self, target: str, *, back_after_s: float | None = None) -> str:
        return self.ask("lose", target, back_after_s=back_after_s)

    def disturb(
        self, control: Mapping[str, Any], *, back_after_s: float | None = None
    ) -> str:
        return self.ask(
            "disturb", "control network", back_after_s=back_after_s, control=control
        )
