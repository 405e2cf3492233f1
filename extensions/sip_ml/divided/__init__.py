"""Light that is divided among pairs of GPUs by what they send (Khani et al., SiP-ML)."""
