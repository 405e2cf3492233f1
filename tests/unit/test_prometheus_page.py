"""The page about metrics, the rules and the dashboard name what a controller tells, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from ringlight.controller.inventory import Inventory
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.controller.rest.metrics import Metrics
from ringlight.controller.service import Controller
from ringlight.controller.web.timing import call_histogram
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from tests.unit.fabrics import six_gpus

DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"\bringlight_[a-z_]+")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The kind of each metric, by its name."""
    fabric = build_fabric(FabricSpec.model_validate(six_gpus()))
    optical = {"ocs0": {"driver": "scpi", "address": "127.0.0.1:9"}}
    inventory = Inventory.model_validate({"lab": "test", "optical_switches": optical})
    controller = Controller(
        fabric,
        inventory,
        tmp_path_factory.mktemp("state"),
        OpenFlowPlane("127.0.0.1", 0),
    )
    registry = CollectorRegistry()
    registry.register(Metrics(controller))
    registry.register(call_histogram())
    return {
        family.name + "_total" * (family.type == "counter"): family.type
        for family in registry.collect()
    }


def test_the_page_has_every_metric_with_its_kind(told: dict[str, str]) -> None:
    rows = re.findall(
        r"^\| (`ringlight_[^|]*) \| (\w+) \|",
        (DOCS / "prometheus.md").read_text(),
        re.MULTILINE,
    )
    assert {name: kind for names, kind in rows for name in NAME.findall(names)} == told


def test_rules_and_dashboard_ask_for_what_there_is(told: dict[str, str]) -> None:
    series = {name for name, kind in told.items() if kind != "histogram"}
    series |= {
        f"{name}_{part}"
        for name, kind in told.items()
        if kind == "histogram"
        for part in ("bucket", "sum")
    }
    rules = yaml.safe_load((DOCS / "prometheus" / "rules.yml").read_text())
    asked = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((DOCS / "prometheus" / "grafana.json").read_text())
    asked += [
        target["expr"] for panel in dashboard["panels"] for target in panel["targets"]
    ]
    named = {name for expression in asked for name in NAME.findall(expression)}
    assert named <= series
    missing = {name for name in told if not any(one.startswith(name) for one in named)}
    assert missing == {
        "ringlight_flows",
        "ringlight_flow_packets_total",
        "ringlight_flow_bytes_total",
        "ringlight_port_received_packets_total",
        "ringlight_port_sent_packets_total",
        "ringlight_port_sent_errors_total",
        "ringlight_optical_failures_total",
    }, "what no panel shows is left out on purpose"
