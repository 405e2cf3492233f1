"""Users' applications for Ryu or os-ken beside our controller, in a process and on a port of their own.

``apps/`` is what runs in that process; ``program.py`` has a lab start it, ``options.py`` is what commands are
told of it.
"""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="applications", processes={"applications": "program:APPLICATIONS"}
)
