"""Values as whole numbers of B bits in blocks that share a scale, and their sums."""
