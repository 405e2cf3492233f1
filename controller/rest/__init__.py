"""The REST API: routes, bodies and answers, who may call, and what Prometheus reads."""
