"""Shared front of every HTTP server of the project: access control, bounds, and the server itself."""
