"""How a client of the controller checks its certificate."""

from __future__ import annotations

import ssl


def trusting(cacert: str, *, anywhere: bool = False) -> ssl.SSLContext:
    """Trusts the authorities in a file, or the very certificates in it. Raises OSError.

    ``anywhere``: a certificate need not name the address that was called: for who has the server's own, and
    calls it from the same machine by another name.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # So that a certificate that an authority has signed can be trusted without that authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cacert)
    context.check_hostname = not anywhere
    return context
