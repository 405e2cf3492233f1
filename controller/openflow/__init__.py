"""OpenFlow through os-ken: the only package that imports it.

os-ken is used as a library (wire format, version negotiation, handshake) on native threads; its
application manager and its configuration files are not.
"""
