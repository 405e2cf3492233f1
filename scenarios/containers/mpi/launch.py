"""Starts an Open MPI program over containers that run already: `launch.py PROGRAM ARGUMENT…` in each.

mpirun starts its daemon on every other host through a remote shell, `ssh` as a rule. Here rank 0 runs mpirun
with this file in place of `ssh`, and the other ranks wait for the one command that it sends: the daemon runs
in the container of its own rank, as its user, and its end is the rank's. No ssh, no key, no name service.
"""

import json
import os
import socket
import subprocess
import sys
import time

TOKEN = "RINGLIGHT_JOB"
WAIT_S = 30.0


def main() -> int:
    if os.environ.get("LAUNCH_REMOTE"):
        # As mpirun calls its remote shell: options, the host, the words of the command.
        host, *words = [word for word in sys.argv[1:] if not word.startswith("-x")]
        return remote(host, " ".join(words))
    return first(sys.argv[1:]) if os.environ["RANK"] == "0" else wait()


def first(program: list[str]) -> int:
    """Rank 0: mpirun on all hosts, one process each."""
    hosts = os.environ["RINGLIGHT_ADDRESSES"].split(",")
    environment = {
        **os.environ,
        "LAUNCH_REMOTE": "1",
        "OMPI_MCA_plm_rsh_agent": f"{sys.executable} {__file__}",
    }
    environment["OMPI_MCA_plm_rsh_no_tree_spawn"] = "1"
    where = [
        "--host",
        ",".join(["localhost", *hosts[1:]]),
        "-np",
        str(len(hosts)),
        "--map-by",
        "node",
    ]
    # Else a daemon leaves its session, and its container would end with that.
    command = ["mpirun", "--leave-session-attached", *where, *program]
    return subprocess.run(command, env=environment, check=False).returncode


def remote(host: str, command: str) -> int:
    """In place of ssh: the command to the rank at that address, what it says back, its exit code."""
    with connected(host) as connection, connection.makefile("rwb") as lines:
        lines.write(
            json.dumps({"job": os.environ[TOKEN], "command": command}).encode() + b"\n"
        )
        lines.flush()
        answer = lines.readline()
    return json.loads(answer)["code"] if answer else 255


def connected(host: str) -> socket.socket:
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return socket.create_connection((host, int(os.environ["MASTER_PORT"])))
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def wait() -> int:
    """Another rank: the one command of rank 0, here."""
    address = os.environ["RINGLIGHT_ADDRESSES"].split(",")[int(os.environ["RANK"])]
    with socket.create_server((address, int(os.environ["MASTER_PORT"]))) as server:
        server.settimeout(WAIT_S)
        connection, _ = server.accept()
    with connection, connection.makefile("rwb") as lines:
        asked = json.loads(lines.readline())
        if asked["job"] != os.environ[TOKEN]:
            return 1
        # mpirun quotes the command for a shell, as of ssh.
        code = subprocess.run(
            ["/bin/sh", "-c", asked["command"]], check=False
        ).returncode
        lines.write(json.dumps({"code": code}).encode() + b"\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
