"""Choose the light of each pair of GPUs from what the pair has to send."""
