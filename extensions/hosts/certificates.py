"""Certificates for a trial with several hosts: an authority, and one certificate for all Dask processes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ringlight.testbed.lab import LabError

#: They are for a trial.
VALID_DAYS = 30
#: What Dask reads from the folder that ``DASK_CONFIG`` names.
CONFIG = "dask.yaml"


def make_certificates(folder: Path) -> Path:
    """Write authority, certificate, key and Dask's configuration into a new folder that only its owner reads.

    The authority's own key is thrown away, so it cannot sign further certificates. Returns the file of the
    configuration. Raises LabError if the folder exists already or the package cryptography is missing.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise LabError(
            "the package cryptography is missing; install it with: pip install 'ringlight[dask]'"
        ) from None

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def begun(
        subject: x509.Name, issuer: x509.Name, key: Any
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
        )
        builder = builder.serial_number(x509.random_serial_number())
        # Clocks of hosts differ.
        return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(
            now + timedelta(days=VALID_DAYS)
        )

    authority, name = (
        ec.generate_private_key(ec.SECP256R1()),
        named("ringlight trial authority"),
    )
    root = begun(name, name, authority.public_key())
    root = root.add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    key = ec.generate_private_key(ec.SECP256R1())
    own = begun(named("ringlight trial host"), name, key.public_key())
    own = own.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    pem = serialization.Encoding.PEM
    folder = folder.absolute()
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise LabError(f"{folder}: it is there already; name a new folder") from None
    except OSError as error:
        raise LabError(f"{folder}: cannot be made: {error.strerror}") from None
    (folder / "ca.pem").write_bytes(
        root.sign(authority, hashes.SHA256()).public_bytes(pem)
    )
    (folder / "cert.pem").write_bytes(
        own.sign(authority, hashes.SHA256()).public_bytes(pem)
    )
    (folder / "key.pem").touch(mode=0o600)
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, *plain))
    (folder / CONFIG).write_text(_config(folder), encoding="utf-8")
    return folder / CONFIG


def _config(folder: Path) -> str:
    """Return Dask's configuration: nothing of Dask works without these certificates.

    Workers do not look a hundred times a second at what they compute, because they compute labs.
    """
    pair = f"{{cert: {folder}/cert.pem, key: {folder}/key.pem}}"
    lines = [
        "distributed:",
        "  comm:",
        "    default-scheme: tls",
        "    require-encryption: true",
        "    tls:",
        f"      ca-file: {folder}/ca.pem",
        *(f"      {process}: {pair}" for process in ("scheduler", "worker", "client")),
        "  worker:",
        "    profile:",
        "      enabled: false",
    ]
    return "\n".join(lines) + "\n"
