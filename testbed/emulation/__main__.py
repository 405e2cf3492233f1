"""``python -m ringlight.testbed.emulation``: builds a lab, serves it until stopped, removes it."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringlight.testbed.descriptors import too_few
from ringlight.testbed.devices import optional_kinds
from ringlight.testbed.lab import ENVIRONMENT, Lab, LabError
from ringlight.testbed.lab_programs import LabProgram, program_kinds

if TYPE_CHECKING:
    from ringlight.fabric.topology import Fabric
    from ringlight.testbed.emulation.shared_lab import SharedLab


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port")
    return host, int(port)


def _factor(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ringlight.testbed.emulation", description=__doc__
    )
    parser.add_argument(
        "--fabric",
        type=Path,
        required=True,
        help="the fabric as JSON, units as strings",
    )
    parser.add_argument(
        "--lab", required=True, help="id: 3 or 4 lower-case letters and digits"
    )
    parser.add_argument(
        "--state", type=Path, help="directory for its files (default: the lab's own)"
    )
    parser.add_argument("--runtime", choices=["docker", "namespace"], default="docker")
    parser.add_argument(
        "--time-dilation", type=_factor, default=1.0, help="D: emulated per real second"
    )
    parser.add_argument(
        "--payload-scale", type=_factor, default=1.0, help="S: real per emulated byte"
    )
    parser.add_argument(
        "--openflow",
        type=_address,
        default=("127.0.0.1", 6653),
        help="controller, host:port",
    )
    parser.add_argument(
        "--program",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="program of an extension to run",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        help="file that says how to start the controller and keep it running",
    )
    parser.add_argument(
        "--congestion-control", default="reno", help="TCP's, in every worker"
    )
    parser.add_argument(
        "--rto-min",
        type=_factor,
        default=0.02,
        help="least TCP time-out, emulated seconds",
    )
    parser.add_argument(
        "--bounded", action="store_true", help="workers have little under way"
    )
    parser.add_argument(
        "--onic-faults",
        action="store_true",
        help="O-NICs' agents may be told to lose control messages",
    )
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        choices=[*optional_kinds()],
        help="device of an extension",
    )
    parser.add_argument(
        "--idle-hosts",
        action="store_true",
        help="an idle host at each GPU from the start",
    )
    parser.add_argument(
        "--image", help="worker image (default: the one made from this source tree)"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _program(text: str) -> tuple[str, LabProgram]:
    name, _, file = text.partition("=")
    return name, program_kinds()[name].read(Path(file))


def load_fabric(path: Path) -> Fabric:
    """Return the fabric that a JSON file describes. Raises ValueError with one line that names file and
    key."""
    from ringlight.fabric.building import fabric_of_document

    try:
        return fabric_of_document(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


#: This program, for ``python -m``.
PROGRAM = "ringlight.testbed.emulation"


def main(
    arguments: list[str] | None = None,
    share: SharedLab | None = None,
    program: str = PROGRAM,
) -> int:
    """Build a lab, or a share of it, serve it until stopped, and remove it. Return the exit code.

    ``arguments``: options; by default those of this process. ``program``: which runs with this process's own
    arguments, for ``python -m``.
    """
    chosen = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s testbed %(levelname)s %(message)s"
    )
    try:
        return _run(chosen, share, program)
    except (LabError, RuntimeError, ValueError, OSError) as error:
        sys.stderr.write(f"testbed: {too_few(error) or error}\n")
        return 1


def _run(chosen: argparse.Namespace, share: SharedLab | None, program: str) -> int:
    lab = Lab(chosen.lab)
    if os.geteuid() != 0:
        raise LabError("root is needed to build networks")
    fabric = load_fabric(chosen.fabric)
    # Every process that this one starts carries the label; so must this one, which clean looks for.
    if os.environ.get(ENVIRONMENT) != lab.id:
        os.environ[ENVIRONMENT] = lab.id
        os.execv(sys.executable, [sys.executable, "-m", program, *sys.argv[1:]])

    from ringlight.testbed.emulation.bridges import ControllerAddress
    from ringlight.testbed.emulation.scale import Emulation
    from ringlight.testbed.emulation.settings import KeptController, Settings, Stopped
    from ringlight.testbed.emulation.shared_lab import SharedLab
    from ringlight.testbed.emulation.testbed import Testbed

    testbed = Testbed(
        Settings(
            lab=lab,
            fabric=fabric,
            state=(chosen.state or lab.state_dir).absolute(),
            runtime=chosen.runtime,
            emulation=Emulation(
                chosen.time_dilation,
                chosen.payload_scale,
                chosen.congestion_control,
                chosen.rto_min,
                chosen.bounded,
            ),
            controller=ControllerAddress(*chosen.openflow),
            programs=dict(map(_program, chosen.program)),
            keeps=KeptController.read(chosen.keep) if chosen.keep else None,
            image=chosen.image,
            seed=chosen.seed,
            onic_faults=chosen.onic_faults,
            devices=tuple(chosen.device),
            idle_hosts=chosen.idle_hosts,
            share=share or SharedLab(),
        )
    )
    received: list[int] = []

    def on_signal(number: int, _frame: Any) -> None:
        received.append(number)
        testbed.ask_to_stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    try:
        testbed.start()
    except Stopped:
        return 128 + received[0] if received else 1
    try:
        logging.info(
            "lab %s is up: %s", lab.id, json.dumps(testbed.inventory["packet_switches"])
        )
        testbed.wait()
    finally:
        testbed.stop()
    return 130 if signal.SIGINT in received else 0


if __name__ == "__main__":
    # Until there is something to take down an interrupt just ends it. As an exception it can get lost in the
    # middle of an import, and the lab would be built.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
