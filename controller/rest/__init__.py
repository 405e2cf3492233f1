"""The REST API: routes, bodies and responses, callers, and metrics for Prometheus."""
