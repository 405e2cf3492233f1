"""REST routes of applications, with the names and ways of ``ryu.app.wsgi``, which os-ken has dropped.

An application asks for ``_CONTEXTS = {"wsgi": WSGIApplication}`` and registers a :class:`ControllerBase`
whose methods have a :func:`route`, or connects to ``wsgi.mapper`` itself, as the oldest do. Web sockets are
left out.
"""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import webob.exc
from anyio import CapacityLimiter, from_thread, to_thread
from os_ken import cfg
from routes import Mapper
from routes.util import URLGenerator
from webob.dec import wsgify
from webob.request import Request as WebobRequest
from webob.response import Response as WebobResponse

from ringlight.controller.web.access import OwnPagesOnly
from ringlight.controller.web.bounds import BoundedBodies
from ringlight.controller.web.listening import listen
from ringlight.controller.web.serving import HttpServer

__all__ = ["ControllerBase", "Request", "Response", "WSGIApplication", "route"]

log = logging.getLogger(__name__)

#: Calls that are answered at a time; others wait.
_THREADS = 40

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
    """Return a decorator with which a method of a :class:`ControllerBase` answers ``path``, such as
    ``/table/{dpid}``.
    """

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

    def __init__(
        self, environ: Any, charset: str | None = None, *args: Any, **more: Any
    ) -> None:
        super().__init__(
            environ, *args, charset=charset or self.DEFAULT_CHARSET, **more
        )


class Response(WebobResponse):  # type: ignore[misc]
    """An answer; text is UTF-8, also of types that have no character set of their own (JSON)."""

    DEFAULT_CHARSET = "UTF-8"

    def __init__(self, *args: Any, charset: str | None = None, **more: Any) -> None:
        super().__init__(*args, charset=charset or self.DEFAULT_CHARSET, **more)


class ControllerBase:
    """Base class of the applications' handlers, created for each call.

    ``data``: the object that the application registered with its class.
    """

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
        words = {
            key: value
            for key, value in self.req.urlvars.items()
            if key not in self.special_vars
        }
        return getattr(self, action)(req, **words)


class WSGIApplication:
    """Routes of all applications; every application gets the same instance."""

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
        for name, method in inspect.getmembers(
            controller, lambda member: hasattr(member, "routing_info")
        ):
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


class Served:
    """The routes as an ASGI application, each call on a thread of its own. A body is there whole when a call
    comes, as :class:`~ringlight.controller.web.bounds.BoundedBodies` hands it on."""

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application
        self._threads = CapacityLimiter(_THREADS)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            request = _request(scope, (await receive()).get("body", b""))
            await to_thread.run_sync(self._answer, request, send, limiter=self._threads)

    def _answer(self, request: Request, send: Any) -> None:
        status, headers, chunks = request.call_application(self._application)
        try:
            pieces = iter(chunks)
            # Before anything is said of it: the first piece may fail yet.
            first = next(pieces, b"")
            from_thread.run(send, _head(status, headers))
            for piece in itertools.chain([first], pieces):
                from_thread.run(
                    send,
                    {"type": "http.response.body", "body": piece, "more_body": True},
                )
            from_thread.run(send, {"type": "http.response.body", "body": b""})
        finally:
            if hasattr(chunks, "close"):
                chunks.close()
        log.info("%s %s: %s", request.method, request.path_info, status)


def _head(status: str, headers: Sequence[tuple[str, str]]) -> dict[str, Any]:
    named = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in headers
    ]
    return {
        "type": "http.response.start",
        "status": int(status.split()[0]),
        "headers": named,
    }


def _request(scope: Any, body: bytes) -> Request:
    """Return a call as WebOb's request."""
    server = scope.get("server") or ("127.0.0.1", 0)
    environ = {
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "SERVER_NAME": str(server[0]),
        "SERVER_PORT": str(server[1]),
        "REMOTE_ADDR": str((scope.get("client") or ("",))[0]),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.multithread": True,
    }
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name not in (b"content-length", b"transfer-encoding"):
            key, text = name.decode("latin-1"), value.decode("latin-1")
            headers[key] = f"{headers[key]},{text}" if key in headers else text
    path = quote(scope["path"])
    new_request: Request = Request.blank(
        path, environ, headers=headers, method=scope["method"], body=body
    )
    return new_request


def make_server(
    address: tuple[str, int], application: WSGIApplication, names: Collection[str] = ()
) -> HttpServer:
    """Bind the port. Return the server, which refuses foreign web pages and bodies above 1 MiB.

    ``names``: further host names of this server. Raises OSError.
    """
    app = OwnPagesOnly(BoundedBodies(Served(application)), [address[0], *names])
    return HttpServer(app, listen(*address))
