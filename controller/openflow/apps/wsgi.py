"""REST routes of applications, with the names and ways of ``ryu.app.wsgi``, which os-ken has dropped.

An application asks for ``_CONTEXTS = {"wsgi": WSGIApplication}`` and registers a :class:`ControllerBase`
whose methods have a :func:`route`, or connects to ``wsgi.mapper`` itself, as the oldest do. Web sockets are
left out.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from socketserver import ThreadingMixIn
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import webob.exc
from os_ken import cfg
from routes import Mapper
from routes.util import URLGenerator
from webob.dec import wsgify
from webob.request import Request as WebobRequest
from webob.response import Response as WebobResponse

__all__ = ["ControllerBase", "Request", "Response", "WSGIApplication", "route"]

log = logging.getLogger(__name__)

HEX_PATTERN = r"0x[0-9a-z]+"
DIGIT_PATTERN = r"[1-9][0-9]*"

CONF = cfg.CONF
CONF.register_cli_opts(
    [
        cfg.StrOpt("wsapi-host", default="127.0.0.1", help="webapp listen host"),
        cfg.IntOpt("wsapi-port", default=8080, help="webapp listen port"),
    ]
)

Method = TypeVar("Method", bound=Callable[..., Any])


def route(
    name: str,
    path: str,
    methods: Sequence[str] | None = None,
    requirements: Mapping[str, str] | None = None,
) -> Callable[[Method], Method]:
    """A method of a :class:`ControllerBase` answers ``path``, such as ``/table/{dpid}``."""

    def mark(method: Method) -> Method:
        method.routing_info = {  # type: ignore[attr-defined]
            "name": name,
            "path": path,
            "methods": methods,
            "requirements": dict(requirements or {}),
        }
        return method

    return mark


class Request(WebobRequest):  # type: ignore[misc]
    """A call, as WebOb reads it."""

    DEFAULT_CHARSET = "UTF-8"

    def __init__(self, environ: Any, charset: str | None = None, *args: Any, **more: Any) -> None:
        super().__init__(environ, *args, charset=charset or self.DEFAULT_CHARSET, **more)


class Response(WebobResponse):  # type: ignore[misc]
    """An answer; text is UTF-8, also of types that have no character set of their own (JSON)."""

    DEFAULT_CHARSET = "UTF-8"

    def __init__(self, *args: Any, charset: str | None = None, **more: Any) -> None:
        super().__init__(*args, charset=charset or self.DEFAULT_CHARSET, **more)


class ControllerBase:
    """Made anew for each call. ``data``: what the application registered with its class."""

    special_vars = ("action", "controller")

    def __init__(self, req: Any, link: Any, data: Any, **config: Any) -> None:
        self.req, self.link, self.data = req, link, data
        self.parent: Any = None
        for name, value in config.items():
            setattr(self, name, value)

    def __call__(self, req: Any) -> Any:
        action = self.req.urlvars.get("action", "index")
        if hasattr(self, "__before__"):
            self.__before__()
        words = {key: value for key, value in self.req.urlvars.items() if key not in self.special_vars}
        return getattr(self, action)(req, **words)


class WSGIApplication:
    """All routes of all applications; each gets the same one."""

    def __init__(self, **config: Any) -> None:
        self.config = config
        self.mapper = Mapper()
        #: Data by name of the controller's class. The spelling is Ryu's: applications use it.
        self.registory: dict[str, Any] = {}

    @wsgify(RequestClass=Request)  # type: ignore[untyped-decorator]
    def __call__(self, req: Any) -> Any:
        match = self.mapper.match(environ=req.environ)
        if not match:
            return webob.exc.HTTPNotFound()
        req.urlvars = match
        kind = match["controller"]
        link = URLGenerator(self.mapper, req.environ)
        controller = kind(req, link, self.registory.get(kind.__name__), **self.config)
        controller.parent = self
        return controller(req)

    def register(self, controller: type, data: Any = None) -> None:
        """Take the routes of a controller's methods; its instances get ``data``."""
        for name, method in inspect.getmembers(controller, lambda one: hasattr(one, "routing_info")):
            info = method.routing_info
            self.mapper.connect(
                info["name"],
                info["path"],
                controller=controller,
                requirements=info["requirements"],
                action=name,
                conditions={"method": info["methods"]} if info["methods"] else None,
            )
        if data:
            self.registory[controller.__name__] = data


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *words: Any) -> None:
        log.info(format, *words)


def make_server(address: tuple[str, int], application: WSGIApplication) -> WSGIServer:
    """It has the port; ``serve_forever`` answers, each call on a thread of its own. Raises OSError."""
    server = _Server(address, _Handler)
    server.set_app(application)
    return server
