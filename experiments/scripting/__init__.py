"""Functions and classes of ``import ringlight as rl``: a thin face of the experiment language.

What these functions make is a scenario (:meth:`Study.to_yaml`), with the names that a scenario file has.
"""
