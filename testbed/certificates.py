"""Check of the controller's certificate by its clients."""

from __future__ import annotations

import ssl


def trusting(cacert: str, *, anywhere: bool = False) -> ssl.SSLContext:
    """Return a TLS context that trusts the authorities in a file, or the certificates in it themselves.
    Raises OSError.

    ``anywhere``: a certificate need not name the address that was called, for a client that has the server's
    own certificate and calls the server from the same machine by another name.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # So that a certificate that an authority has signed can be trusted without that authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cacert)
    context.check_hostname = not anywhere
    return context
