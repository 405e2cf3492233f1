"""``ryu.app.rest_topology``, which os-ken has dropped: REST routes of switches, links and hosts.

``GET /v1.0/topology/switches``, ``…/links`` and ``…/hosts``, each also of one switch: ``…/switches/{dpid}``,
the dpid as sixteen hexadecimal digits. Links need ``--observe-links``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

from os_ken.base import app_manager
from os_ken.lib import dpid as dpid_lib
from os_ken.topology.api import get_host, get_link, get_switch

from ringlight.extensions.applications.apps.wsgi import (
    ControllerBase,
    Response,
    WSGIApplication,
    route,
)

_OF_ONE = {"dpid": dpid_lib.DPID_PATTERN}


class TopologyAPI(app_manager.OSKenApp):  # type: ignore[misc]
    """Application that serves the routes, under Ryu's name."""

    _CONTEXTS: ClassVar[dict[str, type]] = {"wsgi": WSGIApplication}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        kwargs["wsgi"].register(TopologyController, {"topology_api_app": self})


class TopologyController(ControllerBase):
    """Answers the routes; ``data``: the application that asks."""

    def __init__(self, req: Any, link: Any, data: Any, **config: Any) -> None:
        super().__init__(req, link, data, **config)
        self.topology_api_app = data["topology_api_app"]

    @route("topology", "/v1.0/topology/switches", methods=["GET"])
    def list_switches(self, req: Any, **kwargs: Any) -> Response:
        return self._found(get_switch, kwargs)

    @route(
        "topology",
        "/v1.0/topology/switches/{dpid}",
        methods=["GET"],
        requirements=_OF_ONE,
    )
    def get_switch(self, req: Any, **kwargs: Any) -> Response:
        return self._found(get_switch, kwargs)

    @route("topology", "/v1.0/topology/links", methods=["GET"])
    def list_links(self, req: Any, **kwargs: Any) -> Response:
        return self._found(get_link, kwargs)

    @route(
        "topology", "/v1.0/topology/links/{dpid}", methods=["GET"], requirements=_OF_ONE
    )
    def get_links(self, req: Any, **kwargs: Any) -> Response:
        return self._found(get_link, kwargs)

    @route("topology", "/v1.0/topology/hosts", methods=["GET"])
    def list_hosts(self, req: Any, **kwargs: Any) -> Response:
        return self._found(get_host, kwargs)

    @route(
        "topology", "/v1.0/topology/hosts/{dpid}", methods=["GET"], requirements=_OF_ONE
    )
    def get_hosts(self, req: Any, **kwargs: Any) -> Response:
        return self._found(get_host, kwargs)

    def _found(self, get: Callable[..., Any], words: dict[str, str]) -> Response:
        dpid = dpid_lib.str_to_dpid(words["dpid"]) if "dpid" in words else None
        body = json.dumps([part.to_dict() for part in get(self.topology_api_app, dpid)])
        return Response(content_type="application/json", body=body.encode())
