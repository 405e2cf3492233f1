"""The emulated averager of OptINC: a process that answers the codes of N servers with their mean.

It is an electrical box that computes the *function* of the photonic unit: what light does in passing, this
does on a processor, and its processor time and latency are told apart. Any other box that adds in the
network would show the same saving of bytes.

``lookup``  what the unit answers: a table of its network's outputs for all inputs
``core``    sessions, buffers, deadlines, errors; no I/O, the time is handed in
``server``  the sockets
"""
