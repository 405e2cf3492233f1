"""The server agent, which would run on each GPU server; here one serves all servers of a lab.

``workers``: their life; ``http``: the service.
"""
