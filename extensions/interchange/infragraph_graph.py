"""The graph that InfraGraph's own library makes of a document, which so validates it (PyPI: infragraph)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ringlight.experiments.language.text import plain_yaml
from ringlight.extensions.interchange.infragraph_document import InfraGraphError

if TYPE_CHECKING:
    import networkx as nx


def graph_of(document: Mapping[str, Any], file: str) -> nx.Graph[str]:
    """Return the library's graph of an infrastructure, with the annotations if the document has both.

    Nodes are components, ``tor.0.port.4``. Raises InfraGraphError with what the library reports, and
    ModuleNotFoundError if it is not installed.
    """
    from infragraph import Annotation, Infrastructure
    from infragraph.infragraph_service import (
        GraphError,
        InfraGraphService,
        InfrastructureError,
    )

    service = InfraGraphService()
    infrastructure = document.get("infrastructure", document)
    try:
        with warnings.catch_warnings():
            # A dark port hangs alone, which the library warns of.
            warnings.simplefilter("ignore")
            service.set_graph(Infrastructure().deserialize(plain_yaml(infrastructure)))
            if notes := document.get("annotations"):
                service.annotate_graph(Annotation().deserialize(plain_yaml(notes)))
    except (
        GraphError,
        InfrastructureError,
        LookupError,
        NotImplementedError,
        TypeError,
        ValueError,
    ) as error:
        what = (str(error).splitlines() or [type(error).__name__])[0]
        raise InfraGraphError(f"{file}: InfraGraph's library: {what}") from None
    return service.get_networkx_graph()
