"""Which light each pair of GPUs gets, from what they have to send."""
