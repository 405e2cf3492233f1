"""What schemathesis is told so that its calls reach more than "there is no such thing".

Half of the paths and bodies that it makes up are the examples of the API's own description, which fit the
lab of ``test_openapi.py``.
"""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import strategies as st

#: Longest that a stream of events may last here, seconds.
STREAM_S = 0.2
#: An egress of every optical switch that the examples leave alone. Any other that is disabled would make all
#: that comes after it fail.
SPARE_PORT = 20


def _examples(schema: dict[str, Any]) -> list[Any]:
    return list(schema.get("examples", ()))


@schemathesis.hook
def before_generate_path_parameters(context: Any, strategy: Any) -> Any:
    known = {
        parameter["name"]: _examples(parameter) + _examples(parameter["schema"])
        for parameter in context.operation.definition.raw.get("parameters", ())
        if parameter["in"] == "path"
    }
    if not all(known.values()):
        return strategy
    good = st.fixed_dictionaries(
        {name: st.sampled_from(values) for name, values in known.items()}
    )
    return st.one_of(strategy, good)


@schemathesis.hook
def before_generate_body(context: Any, strategy: Any) -> Any:
    values = [
        example
        for body in context.operation.body
        for example in _examples(body.definition["schema"])
    ]
    return st.one_of(strategy, st.sampled_from(values)) if values else strategy


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    if case.operation.path == "/v1/events":
        # Without it the stream would not end.
        case.query = {**(case.query or {}), "seconds": STREAM_S}
    if case.operation.path == "/v1/claims" and isinstance(case.body, dict):
        # Claims of any GPU would leave none for the jobs that come after them.
        case.body.pop("count", None)
    if case.operation.path.endswith("/{name}/faults") and isinstance(case.body, dict):
        # One that acts would make all that comes after it fail.
        case.body = {**case.body, "probability": 0.0}
    if case.operation.path.endswith("/ports/{port}") and case.body == {
        "enabled": False
    }:
        case.path_parameters = {**case.path_parameters, "port": SPARE_PORT}
