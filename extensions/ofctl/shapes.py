"""Bodies and answers of ``/stats``, as Ryu documents ``ofctl_rest`` for OpenFlow 1.3.

Numbers may be written as JSON numbers or as strings, decimal or ``0x…``. Unlike there, an unknown key of an
entry is refused, because a flow whose actions are misspelt drops packets. Keys that a GET answers are known
and without effect, so that they may be sent back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator
from pydantic_core import core_schema


class _Number:
    """A number of so many bits, or one of the reserved names, with or without OpenFlow's prefix."""

    def __init__(self, bits: int, prefix: str = "", names: Sequence[str] = ()) -> None:
        self.bits = bits
        self.most = 2**bits - 1
        self.names = [*names, *(prefix + name for name in names)]

    @property
    def text(self) -> str:
        """The pattern of a number as a string; one with too high a first digit is told apart later."""
        return rf"0|[1-9][0-9]{{0,{len(str(self.most)) - 1}}}|0[xX][0-9a-fA-F]{{1,{-(-self.bits // 4)}}}"

    def read(self, value: Any) -> int | str:
        if isinstance(value, str) and value in self.names:
            return value
        number = value
        if isinstance(value, str):
            try:
                number = int(value, 0)
            except ValueError:
                number = None
        if isinstance(number, bool) or not isinstance(number, int):
            also = f" or one of {', '.join(self.names)}" if self.names else ""
            raise ValueError(f"must be a whole number{also}")
        if not 0 <= number <= self.most:
            raise ValueError(f"must be between 0 and {self.most}")
        return number

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        choices: list[dict[str, Any]] = [
            {"type": "integer", "minimum": 0, "maximum": self.most},
            {"type": "string", "pattern": f"^({self.text})$"},
        ]
        if self.names:
            choices.append({"type": "string", "enum": self.names})
        return {"anyOf": choices}


_PORTS = ("IN_PORT", "TABLE", "NORMAL", "FLOOD", "ALL", "CONTROLLER", "LOCAL", "ANY")
U8 = Annotated[int | str, _Number(8)]
U16 = Annotated[int | str, _Number(16)]
U32 = Annotated[int | str, _Number(32)]
U64 = Annotated[int | str, _Number(64)]
MaxLen = Annotated[int | str, _Number(16, "OFPCML_", ("MAX", "NO_BUFFER"))]
PortNo = Annotated[int | str, _Number(32, "OFPP_", _PORTS)]
TableId = Annotated[int | str, _Number(8, "OFPTT_", ("MAX", "ALL"))]
GroupId = Annotated[int | str, _Number(32, "OFPG_", ("MAX", "ALL", "ANY"))]
MeterId = Annotated[
    int | str, _Number(32, "OFPM_", ("MAX", "SLOWPATH", "CONTROLLER", "ALL"))
]
RoleName = Annotated[
    int | str, _Number(2, "OFPCR_ROLE_", ("NOCHANGE", "EQUAL", "MASTER", "SLAVE"))
]


def _path(description: str, bits: int = 32, example: str = "ALL") -> Any:
    allowed = f"^({'ALL|' if bits == 32 else ''}{_Number(bits).text})$"
    return Path(pattern=allowed, description=description, examples=[example])


#: In a path: a datapath id, or what narrows the answer ("ALL": does not).
Dpid = Annotated[str, _path("Datapath id, decimal or 0x…", 64, "1")]
OnePort = Annotated[str, _path("Port number, or ALL", example="1")]
OneQueue = Annotated[str, _path("Queue id, or ALL")]
OneGroup = Annotated[str, _path("Group id, or ALL")]
OneMeter = Annotated[str, _path("Meter id, or ALL")]

# fmt: off
MatchField = Literal[
    "in_port", "in_phy_port", "metadata", "dl_dst", "dl_src", "eth_dst", "eth_src", "dl_type", "eth_type",
    "dl_vlan", "vlan_vid", "vlan_pcp", "ip_dscp", "ip_ecn", "nw_proto", "ip_proto", "nw_src", "nw_dst",
    "ipv4_src", "ipv4_dst", "tp_src", "tp_dst", "tcp_src", "tcp_dst", "udp_src", "udp_dst", "sctp_src",
    "sctp_dst", "icmpv4_type", "icmpv4_code", "arp_op", "arp_spa", "arp_tpa", "arp_sha", "arp_tha",
    "ipv6_src", "ipv6_dst", "ipv6_flabel", "icmpv6_type", "icmpv6_code", "ipv6_nd_target", "ipv6_nd_sll",
    "ipv6_nd_tll", "mpls_label", "mpls_tc", "mpls_bos", "pbb_isid", "tunnel_id", "ipv6_exthdr",
]
# fmt: on
Match = dict[MatchField, int | str]
# fmt: off
ActionType = Literal[
    "OUTPUT", "COPY_TTL_OUT", "COPY_TTL_IN", "SET_MPLS_TTL", "DEC_MPLS_TTL", "PUSH_VLAN", "POP_VLAN",
    "PUSH_MPLS", "POP_MPLS", "SET_QUEUE", "GROUP", "SET_NW_TTL", "DEC_NW_TTL", "SET_FIELD", "PUSH_PBB",
    "POP_PBB", "EXPERIMENTER", "GOTO_TABLE", "WRITE_METADATA", "METER", "WRITE_ACTIONS", "CLEAR_ACTIONS",
]
# fmt: on


# Bodies

#: Of a key that a GET answers, or that another command has: it may be there and does nothing.
Unused = Annotated[Any, Field(exclude=True)]


class OfBody(BaseModel):
    """A body, or a part of one, without unknown keys."""

    model_config = ConfigDict(extra="forbid")


class Action(OfBody):
    """An action or instruction; which other keys it needs depends on ``type``."""

    type: ActionType
    port: PortNo | None = None
    max_len: MaxLen | None = None
    mpls_ttl: U8 | None = None
    nw_ttl: U8 | None = None
    ethertype: U16 | None = None
    queue_id: U32 | None = None
    group_id: GroupId | None = None
    meter_id: MeterId | None = None
    table_id: TableId | None = None
    field: str | None = None
    value: int | str | None = None
    metadata: U64 | None = None
    metadata_mask: U64 | None = None
    experimenter: U32 | None = None
    data: str | None = None
    data_type: Literal["ascii", "base64"] | None = None
    actions: list[Action] | None = None


class FlowFilter(OfBody):
    """``POST /stats/flow/<dpid>``: of the flows, only these. ``priority`` is compared by the controller."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"table_id": 0, "match": {"dl_type": 2048}}]}
    )

    table_id: TableId | None = None
    out_port: PortNo | None = None
    out_group: GroupId | None = None
    cookie: U64 | None = None
    cookie_mask: U64 | None = None
    match: Match | None = None
    priority: U16 | None = None
    dpid: Unused = None


class OfSwitch(OfBody):
    dpid: U64


class FlowEntry(OfSwitch):
    """``POST /stats/flowentry/<command>``. No actions: drop."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "dpid": 1,
                    "priority": 11111,
                    "match": {"dl_type": 2048, "nw_dst": "192.0.2.1"},
                    "actions": [{"type": "OUTPUT", "port": 2}],
                }
            ]
        }
    )

    cookie: U64 | None = None
    cookie_mask: U64 | None = None
    table_id: TableId | None = None
    idle_timeout: U16 | None = None
    hard_timeout: U16 | None = None
    priority: U16 | None = None
    buffer_id: U32 | None = None
    out_port: PortNo | None = None
    out_group: GroupId | None = None
    flags: U16 | None = None
    match: Match | None = None
    actions: list[Action] | None = None
    length: Unused = None
    duration_sec: Unused = None
    duration_nsec: Unused = None
    packet_count: Unused = None
    byte_count: Unused = None


class Bucket(OfBody):
    """``weight`` is for SELECT groups; ``watch_port`` and ``watch_group`` are for FF ones."""

    weight: U16 | None = None
    watch_port: U32 | None = None
    watch_group: U32 | None = None
    actions: list[Action] | None = None


class GroupEntry(OfSwitch):
    """``POST /stats/groupentry/<command>``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "dpid": 1,
                    "type": "ALL",
                    "group_id": 1,
                    "buckets": [{"actions": [{"type": "OUTPUT", "port": 1}]}],
                }
            ]
        }
    )

    type: Literal["ALL", "SELECT", "INDIRECT", "FF"] | None = None
    group_id: GroupId | None = None
    buckets: list[Bucket] | None = None


class GroupKey(OfSwitch):
    """``POST /stats/groupentry/delete``."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"dpid": 1, "group_id": 1}]}
    )

    group_id: GroupId | None = None
    type: Unused = None
    buckets: Unused = None


MeterFlag = Literal["KBPS", "PKTPS", "BURST", "STATS"]


class Band(OfBody):
    """``rate`` and ``burst_size`` in kbit/s and kbit, or packets per second and packets with PKTPS."""

    type: Literal["DROP", "DSCP_REMARK", "EXPERIMENTER"]
    rate: U32 | None = None
    burst_size: U32 | None = None
    prec_level: U8 | None = None
    experimenter: U32 | None = None


class MeterEntry(OfSwitch):
    """``POST /stats/meterentry/<command>``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "dpid": 1,
                    "flags": "KBPS",
                    "meter_id": 1,
                    "bands": [{"type": "DROP", "rate": 1000}],
                }
            ]
        }
    )

    flags: MeterFlag | list[MeterFlag] | None = None
    meter_id: MeterId | None = None
    bands: list[Band] | None = None


class MeterKey(OfSwitch):
    """``POST /stats/meterentry/delete``."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"dpid": 1, "meter_id": 1}]}
    )

    meter_id: MeterId | None = None
    flags: Unused = None
    bands: Unused = None


#: OFPPC_PORT_DOWN, NO_RECV, NO_FWD and NO_PACKET_IN.
_PORT_BITS = 0x65


class PortEntry(OfSwitch):
    """``POST /stats/portdesc/modify``: the bits of ``mask`` become those of ``config`` (OFPPC_*; 1: down)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"dpid": 1, "port_no": 1, "config": 0, "mask": 1}]
        }
    )

    port_no: PortNo
    config: U32 | None = None
    mask: U32 | None = None
    advertise: U32 | None = None
    hw_addr: str | None = None
    name: Unused = None
    state: Unused = None
    curr: Unused = None
    advertised: Unused = None
    supported: Unused = None
    peer: Unused = None
    curr_speed: Unused = None
    max_speed: Unused = None

    @field_validator("mask")
    @classmethod
    def _is_there(cls, mask: int | None) -> int | None:
        if mask is not None and mask & ~_PORT_BITS:
            raise ValueError(
                f"OpenFlow 1.3 has the bits {_PORT_BITS:#x}, not {mask:#x}"
            )
        return mask


class RoleEntry(OfSwitch):
    """``POST /stats/role``."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"dpid": 1, "role": "EQUAL"}]}
    )

    role: RoleName = "EQUAL"


class Experiment(OfBody):
    """``POST /stats/experimenter/<dpid>``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"experimenter": 1, "exp_type": 1, "data": "data"}]
        }
    )

    dpid: Unused = None
    experimenter: U32 = 0
    exp_type: U32 = 0
    data_type: Literal["ascii", "base64"] = "ascii"
    data: str = Field(default="", max_length=60_000)


# Answers: by datapath id, as a string


def _shape(title: str, numbers: str = "", /, **more_fields: Any) -> Any:
    """Return the model of an answer with exactly these keys.

    ``numbers``: names of whole numbers. ``more_fields``: types of further keys.
    """
    fields: dict[str, Any] = dict.fromkeys(numbers.split(), (int, ...))
    fields |= {
        key: kind if isinstance(kind, tuple) else (kind, ...)
        for key, kind in more_fields.items()
    }
    return create_model(title, __config__=ConfigDict(extra="forbid"), **fields)


def many(shape: Any) -> Any:
    """Return the type of a list of this shape."""
    return list[shape]


_NUMBER = int | str
_TIME = "duration_sec duration_nsec"
_COUNT = "packet_count byte_count"

Desc = _shape(
    "Desc", mfr_desc=str, hw_desc=str, sw_desc=str, serial_num=str, dp_desc=str
)
#: ``actions``: ``"OUTPUT:2"``, … and for an action set ``{"WRITE_ACTIONS": [...]}``.
FlowStats = _shape(
    "FlowStats",
    f"length {_TIME} priority idle_timeout hard_timeout flags cookie {_COUNT}",
    table_id=_NUMBER,
    match=dict[str, int | str],
    actions=list[str | dict[str, list[str]]],
)
AggregateStats = _shape("AggregateStats", f"{_COUNT} flow_count")
TableStats = _shape(
    "TableStats", "active_count lookup_count matched_count", table_id=_NUMBER
)
TableFeatures = _shape(
    "TableFeatures",
    "metadata_match metadata_write config max_entries",
    table_id=_NUMBER,
    name=str,
    properties=list[dict[str, Any]],
)
PortStats = _shape(
    "PortStats",
    "rx_packets tx_packets rx_bytes tx_bytes rx_dropped tx_dropped rx_errors tx_errors rx_frame_err "
    f"rx_over_err rx_crc_err collisions {_TIME}",
    port_no=_NUMBER,
)
PortDesc = _shape(
    "PortDesc",
    "config state curr advertised supported peer curr_speed max_speed",
    port_no=_NUMBER,
    hw_addr=str,
    name=str,
)
QueueStats = _shape(
    "QueueStats", f"port_no queue_id tx_bytes tx_packets tx_errors {_TIME}"
)
QueueDesc = _shape(
    "QueueDesc", queue_id=_NUMBER, port=_NUMBER, properties=list[dict[str, Any]]
)
QueueConfig = _shape("QueueConfig", port=_NUMBER, queues=many(QueueDesc))
Count = _shape("Count", _COUNT)
GroupStats = _shape(
    "GroupStats",
    f"length ref_count {_COUNT} {_TIME}",
    group_id=_NUMBER,
    bucket_stats=many(Count),
)
BucketDesc = _shape("BucketDesc", "weight watch_port watch_group", actions=list[str])
GroupDesc = _shape("GroupDesc", type=str, group_id=_NUMBER, buckets=many(BucketDesc))
GroupFeatures = _shape(
    "GroupFeatures",
    types=list[str],
    capabilities=list[str],
    max_groups=list[dict[str, int]],
    actions=list[dict[str, list[str]]],
)
BandStats = _shape("BandStats", "packet_band_count byte_band_count")
MeterStats = _shape(
    "MeterStats",
    f"len flow_count packet_in_count byte_in_count {_TIME}",
    meter_id=_NUMBER,
    band_stats=many(BandStats),
)
BandDesc = _shape(
    "BandDesc",
    "rate burst_size",
    type=str,
    prec_level=(int | None, None),
    experimenter=(int | None, None),
)
MeterConfig = _shape(
    "MeterConfig", flags=list[MeterFlag], meter_id=_NUMBER, bands=many(BandDesc)
)
MeterFeatures = _shape(
    "MeterFeatures",
    "max_meter max_bands max_color",
    band_types=list[str],
    capabilities=list[str],
)
Role = _shape("Role", "generation_id", role=str)
