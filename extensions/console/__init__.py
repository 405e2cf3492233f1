"""Interactive commands for a running lab: Mininet's prompt, commands at nodes, pings, rates, captures, pictures."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(name="console", commands="shell_commands:register")
