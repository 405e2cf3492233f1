"""HTTP clients of servers on a Unix socket, or elsewhere."""

from __future__ import annotations

import httpx


def http_client(address: str, timeout_s: float) -> httpx.Client:
    """Return a client of the server at ``address`` (``unix:/path`` or ``http://host:port``).

    ``timeout_s``: longest wait for an answer, seconds. Proxies in the environment are not used.
    """
    if not address.startswith("unix:"):
        return httpx.Client(base_url=address, timeout=timeout_s, trust_env=False)
    # Nothing is encrypted there, and to read certificates takes longer than to ask.
    transport = httpx.HTTPTransport(uds=address.removeprefix("unix:"), verify=False)
    return httpx.Client(transport=transport, base_url="http://agent", timeout=timeout_s)
