"""The files of a Slurm cluster, in the folder of slurm.conf."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ringlight import IMPORT_PATH
from ringlight.extensions.slurm.partitions import SlurmError
from ringlight.extensions.slurm.plugin import compile_plugin
from ringlight.extensions.slurm.site import FILE, Site
from ringlight.extensions.slurm.slurm_conf import (
    HEAD,
    HOOKS,
    PLUGINS,
    SPANK,
    TOPOLOGY,
    ClusterSettings,
    flat_topology,
    hook_script,
    plugins_conf,
    slurm_conf,
)


def names(settings: ClusterSettings) -> list[str]:
    """Return the names of the files of a cluster."""
    hooks = list(HOOKS) if settings.leads else []
    topology = [TOPOLOGY] if settings.follows else []
    return ["slurm.conf", FILE, PLUGINS, SPANK, *hooks, *topology]


def write(settings: ClusterSettings, site: Site) -> None:
    """Write the files of a cluster, and compile its plug-in.

    Raises OSError, and SlurmError, also for a folder with the slurm.conf of another cluster, which stays.
    """
    directory = settings.directory
    _check_ours(directory / "slurm.conf")
    (directory / "state").mkdir(mode=0o700, parents=True, exist_ok=True)
    site.write(directory)
    texts = {"slurm.conf": slurm_conf(settings), PLUGINS: plugins_conf(directory)}
    if settings.follows:
        texts[TOPOLOGY] = flat_topology(settings.nodes)
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    for name, module in HOOKS.items() if settings.leads else ():
        path = directory / name
        path.write_text(
            hook_script(module, settings, str(IMPORT_PATH)), encoding="utf-8"
        )
        path.chmod(0o755)
    compile_plugin(directory / SPANK)


def _check_ours(path: Path) -> None:
    with suppress(FileNotFoundError):
        if not path.read_bytes().startswith(HEAD.encode()):
            raise SlurmError(f"{path}: of another cluster; choose another folder")
