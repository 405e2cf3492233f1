"""A lab whose optical switch is one of Calient's, with a login, that runs elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.test_ocs_fabric import drive_from_a_lab
from tests.served import PASSWORD, USER, Lines, any_port, serving

pytestmark = pytest.mark.root


def test_a_lab_drives_a_switch_with_a_login_that_is_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(f"{USER}:{PASSWORD}\n")
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    options = [
        "--profile",
        "calient-s320",
        "--ports",
        "8",
        "--users",
        f"{tmp_path}/users",
    ]
    with serving(tmp_path, *options, *any_port("calient-tl1")) as switch:
        host, port = switch.addresses["calient-tl1"]
        login = f"username: {USER}, password_file: {tmp_path}/password"
        drive_from_a_lab(
            f'driver: calient-tl1, address: "{host}:{port}", {login}', PASSWORD
        )
        # The light stays when the lab goes, as that of a real switch does.
        with Lines((host, port)) as telnet:
            telnet.until(b"agent> ")
            telnet.ask(f'ACT-USER::{USER}:1::"{PASSWORD}";', b"agent> ")
            told = telnet.ask("RTRV-CRS:::2::ALL;", b"agent> ")
            assert {"1.1.1>1.1.3", "1.1.3>1.1.1"} <= set(
                re.findall(r"[\d.]+>[\d.]+", told)
            )
