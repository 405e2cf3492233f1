"""One lab over several hosts: how its parts answer each other, and how the first one answers for all."""
