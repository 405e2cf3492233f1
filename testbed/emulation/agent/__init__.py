"""The server agent: what an operator's agent on each GPU server would be. One serves all servers of a lab.

``workers``: their life; ``http``: the service.
"""
