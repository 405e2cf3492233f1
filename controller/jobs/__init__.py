"""Jobs: which GPUs they get, their life, and what their workers say."""
