"""Hands in a lab that is up: Mininet's prompt, commands at its nodes, pings, rates, captures and pictures."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(name="console", commands="shell_commands:register")
