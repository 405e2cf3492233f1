"""Predictions of tables that others published, written before an outcome is read, and compared with them."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="judge",
    requires=("flows", "sip_ml", "servers", "bench"),
    commands="cli:register",
)
