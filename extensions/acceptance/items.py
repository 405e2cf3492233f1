"""The 45 items of the conformance list, by number, in a few words each."""

SECTIONS: dict[str, dict[int, str]] = {
    "Identity and reading": {
        1: "probe, refused login and no switch are told apart",
        2: "ports are those declared",
        3: "an empty switch reads as empty",
        4: "a reading is the truth",
        5: "a full switch reads completely",
        6: "a failed reading raises",
    },
    "Writing": {
        7: "add one",
        8: "add many, in one batch where it can",
        9: "a repetition writes nothing",
        10: "delete by ingress",
        11: "delete what is absent",
        12: "move",
        13: "swap",
        14: "turn a cycle",
        15: "replace with nothing",
        16: "names stay",
    },
    "Safety": {
        17: "kept circuits are untouched",
        18: "dark ports are those of the plan",
        19: "SAFE refuses a busy port",
        20: "clashes are rejected before any write",
        21: "wrong, disabled and failed ports are rejected",
        22: "what another owns survives",
        23: "a half-bad batch names each circuit",
        24: "removals before additions",
    },
    "Faults": {
        25: "reply lost after its effect",
        26: "connection dropped, login again",
        27: "idle logout",
        28: "autonomous message before a reply",
        29: "a refusal is a failure, whatever its status",
        30: "garbage, truncated and slow replies",
        31: "said to be done and is not",
        32: "a circuit that never tunes",
        33: "another writer makes a plan stale",
        34: "another session has the lock",
    },
    "Concurrency and time": {
        35: "many threads",
        36: "deadlines hold",
        37: "dark time as declared",
        38: "random changes follow a model",
    },
    "Telemetry and life cycle": {
        39: "power, and none where there is no meter",
        40: "loss of signal raised and cleared",
        41: "a port's change is noticed",
        42: "a disabled port keeps its cross-connect",
        43: "after a restart it carries what its mode says",
        44: "close leaves nothing",
        45: "secrets are never shown",
    },
}
ITEMS: dict[int, str] = {
    number: text for section in SECTIONS.values() for number, text in section.items()
}
