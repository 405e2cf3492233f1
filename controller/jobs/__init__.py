"""Jobs: their GPUs, their states, and their workers' events."""
