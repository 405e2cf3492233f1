"""Flows over a 3:1 Clos network of 648 hosts in a packet simulator."""

from __future__ import annotations

from collections.abc import Sequence

from ringlight.extensions.flows.simulation import completion_times_s
from ringlight.extensions.flows.transport import Transport
from ringlight.extensions.judge.contract import Judge, Judgement, ReadTable, Row
from ringlight.extensions.judge.flow_tables import (
    PARAMETERS,
    compared,
    draw,
    flows_of,
    parameters,
    rows_of,
)
from ringlight.fabric.trees import fat_tree

_FLOWS = "opera_sim/flows_1percent_clos_3to1.csv.gz"
_OUTCOMES = "opera_sim/fct_1percent_clos_3to1.csv.gz"
#: Pods, each with half as many racks; fat_tree_topology_3to1_k12.cpp.
_PODS = 12
#: Draws of the phases of packets; percentiles are means over them.
_SEEDS = (1, 2, 3)


def predict(read: ReadTable) -> list[Row]:
    """Return the completion time of each flow, milliseconds, until the sender has all acknowledgements."""
    stated, flows = parameters(read), flows_of(read(_FLOWS))
    hosts, uplinks = (
        int(stated[f"3:1 Clos: {name}"])
        for name in ("hosts per rack", "up links of a rack")
    )
    tree = fat_tree(
        _PODS,
        1e9 * float(stated["link and host rate"]),
        gpus_per_edge=hosts,
        uplinks=uplinks,
        oversubscription=hosts / uplinks,
    )
    transport = Transport(
        packet_bytes=int(stated["packet with header"]),
        header_bytes=int(stated["header"]),
        window_packets=int(stated["3:1 Clos: window"]),
        full_packets=True,
        acknowledgement_bytes=int(stated["header"]),
        switch_delay_s=1e-9 * float(stated["delay between racks"]),
        nic_delay_s=1e-9 * float(stated["delay host to rack"]),
    )
    fabric = tree.fabric()
    return [
        row
        for seed in _SEEDS
        for row in rows_of(
            f"seed {seed}", flows, completion_times_s(fabric, flows, transport, seed)
        )
    ]


def compare(rows: Sequence[Row], read: ReadTable) -> Judgement:
    """Return predicted beside published percentiles of each size."""
    return compared(rows, read(_OUTCOMES), {"median": 5, "99 %": 10, "every": 10})


JUDGE = Judge(
    name="clos",
    title="10,374 flows over a 3:1 Clos network of 648 hosts, load 1 %",
    source="TritonNetworking/opera-sim @c09861386c21, Figure7_datamining/3to1_clos",
    inputs=(PARAMETERS, _FLOWS),
    outcomes=(_OUTCOMES,),
    needs={
        "all flows": "serialisation at each hop, propagation, packets over all shortest paths in turn; "
        "completion when the sender has the last acknowledgement (ndp.cpp)",
        "short flows": "queues: packets of long flows, whose windows exceed their packets in flight",
        "long flows": "max-min fair rates, and the share of a link that acknowledgements take",
        "99 %": "the mean over three draws of the phases in which short flows meet packets of long ones",
        "left out": "nine flows of the file that have no published time, as the simulation ended before them",
        "evidence": "no constant was set to a published time, but queues of long flows and the share of "
        "acknowledgements were added after the differences without them had been seen",
    },
    predict=predict,
    compare=compare,
    draw=draw,
    caption="Completion times by size of flows: percentiles, published against predicted.",
)
