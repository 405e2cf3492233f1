"""A cluster over months: jobs of a trace queue, are placed, share the fabric's links, are regrouped, lose
GPUs."""
