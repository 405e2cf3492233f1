"""Trains the network of an OptINC unit: ``python -m ringlight.extensions.optinc.onn``.

A program of its own. It needs torch, which is the extra ``onn``; nothing that runs a scenario imports it.
What it leaves, weights and a note, is what ``extensions.optinc.unit.weights`` reads, without torch.

``layers``    matrices of squares Sigma U, by construction or by projection
``training``  the paper's two-stage loss (Eq. 7) and the loop
``command``   arguments, files, and the check over every input
"""
