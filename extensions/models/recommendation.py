"""A recommender's program: tables divided over all ranks, networks replicated.

As Naumov et al., arXiv:1906.00091, section 3, have it.
"""

from __future__ import annotations

from ringlight.extensions.models.buckets import Buckets
from ringlight.extensions.models.layers import Recommender, bottom_layers, top_layers
from ringlight.extensions.models.settings import OPTIMISER_BYTES, Training
from ringlight.workloads.graph import Collective, Program
from ringlight.workloads.graph_writer import Book, Handle, Writer


def recommender_program(
    book: Book,
    model: Recommender,
    ranks: int,
    training: Training,
    gradients: int,
    tables: int,
) -> Program:
    """Return the program of every rank; ``gradients`` and ``tables`` are communicator slots.

    Each rank has as much of the tables as any other, by rows, or by columns if there are more ranks than
    tables. It looks up for all samples, and an all-to-all brings each its vectors while the bottom network
    computes; another one brings back their gradients while the bottom network's backward pass goes on.
    """
    writer = Writer(book)
    buckets = Buckets(writer, training, "dp", "gradients", gradients, ranks)
    vectors = (
        training.micro_batch * len(model.rows) * model.width * training.element_bytes
    )
    read = vectors * model.lookups
    what = Collective("all-to-all", training.algorithms.get("all-to-all", ""))
    updated: Handle | None = None

    def exchanged(name: str, after: Handle) -> Handle:
        if ranks == 1:
            return after
        return writer.collective(
            name, what, vectors, tables, stream="tables", after=[after]
        )

    for number in range(training.micro_batches):
        bottom, top = bottom_layers(model), top_layers(model)
        looked_up = writer.memory("look-up", read, stream="tables")
        arrived = exchanged("tables vectors", looked_up)
        for layer in bottom:
            writer.compute(
                f"{layer.name} forward", flops=layer.flops * training.micro_batch
            )
        for layer in top:
            writer.compute(
                f"{layer.name} forward",
                flops=layer.flops * training.micro_batch,
                after=[arrived],
            )
        buckets.begin()
        for layer in (*reversed(top), *reversed(bottom)):
            done = writer.compute(
                f"{layer.name} backward", flops=2 * layer.flops * training.micro_batch
            )
            if layer is top[0]:
                updated = writer.memory(
                    "table update",
                    2 * read,
                    stream="tables",
                    after=[exchanged("tables gradients", done)],
                )
            if number == training.micro_batches - 1:
                buckets.add(layer.parameters, done)
        buckets.close(done)
    replicated = sum(layer.parameters for layer in (*bottom, *top))
    writer.memory(
        "optimiser", replicated * OPTIMISER_BYTES, after=[buckets.last, updated]
    )
    return writer.done()
