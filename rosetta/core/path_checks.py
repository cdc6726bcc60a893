"""Check folders and files that a user names, on this machine or in an object store."""

from __future__ import annotations

import os
import tempfile

from rosetta.core.errors import DENIED, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.core.value_parsing import split_scheme

CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
# Where Debian and Red Hat keep certificates. TensorFlow's libcurl only looks at Debian's path.
SYSTEM_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_COPY_COMMANDS = {"gs://": "gcloud storage cp -r", "s3://": "aws s3 sync"}


def check_is_local(path: str, where: str) -> None:
    """Check that a path is not an address of an object store.

    Token caches, tokens of Megatron-LM, prepared sets of TFDS and vocabularies have to be local.

    Args:
      path: The path.
      where: The setting that names it, for the error.

    Raises:
      UserError: The path is an address.
    """
    scheme = split_scheme(path)[0]
    if scheme:
        copy = _COPY_COMMANDS.get(scheme, "curl -O")
        raise UserError(
            f"token caches and vocabularies are read from files, not from {scheme}",
            where,
            f"copy them first ({copy} {path} FOLDER), or mount them",
            kind=UNSUPPORTED,
        )


def check_certificates(*, needed: bool = False) -> None:
    """Check that the certificates for TLS connections exist.

    Red Hat does not keep its certificates where TensorFlow's libcurl looks for them.

    Args:
      needed: Whether it is an error that no certificates are found. If not, only certificates that
        a variable names are checked.

    Raises:
      UserError: A variable names a file that does not exist; or, if needed, there are none.
    """
    for name in CERTIFICATE_VARIABLES:
        path = os.environ.get(name)
        if path and not os.path.exists(path):
            raise UserError(
                "there is no such file of certificates",
                f"{name}={path}",
                f"unset {name}, or name an existing file such as {SYSTEM_CERTIFICATES[0]}",
                kind=MISSING,
                value=path,
            )
    is_set = any(os.environ.get(name) for name in CERTIFICATE_VARIABLES)
    if needed and not is_set and not os.path.exists(SYSTEM_CERTIFICATES[0]):
        other_file = next((path for path in SYSTEM_CERTIFICATES if os.path.exists(path)), None)
        remedy = "install ca-certificates, or set SSL_CERT_FILE and CURL_CA_BUNDLE"
        if other_file:
            remedy = f"export CURL_CA_BUNDLE={other_file} SSL_CERT_FILE={other_file}"
        raise UserError(
            "no certificates, so no TLS connection can be checked",
            SYSTEM_CERTIFICATES[0],
            remedy,
            kind=MISSING,
        )


def check_remote_path(path: str) -> None:
    """Check a folder that may be in an object store: its scheme, certificates and credentials.

    T5X reads and writes through TensorFlow's file systems. The one for gs:// is part of TensorFlow.
    The one for s3:// has not been since TensorFlow 2.7, and no tensorflow-io exists for the
    TensorFlow of an environment.

    Args:
      path: MODEL_DIR or a checkpoint. Local paths pass this check.

    Raises:
      UserError: The store cannot be used.
    """
    scheme, rest = split_scheme(path)
    if not scheme:
        return
    if scheme == "s3://":
        raise UserError(
            "TensorFlow does not support s3:// any more, so that T5X can neither read nor write it",
            path,
            "mount the bucket (mountpoint-s3, rclone mount) and name the folder, or use gs://",
            kind=UNSUPPORTED,
        )
    if scheme != "gs://":
        raise UserError(
            f"{scheme} is not supported",
            path,
            "use an absolute path or gs://",
            kind=UNSUPPORTED,
            value=scheme,
        )
    if not rest.strip("/"):
        raise UserError(
            "the name of the bucket is missing", path, "write gs://BUCKET/FOLDER", kind=INVALID
        )
    check_certificates(needed=True)
    credentials = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if credentials and not os.path.isfile(credentials):
        raise UserError(
            "there is no such file of credentials",
            f"GOOGLE_APPLICATION_CREDENTIALS={credentials}",
            "mount the file, or unset the variable on a Google Cloud machine",
            kind=MISSING,
            value=credentials,
        )


def check_local_folder_writable(folder: str) -> None:
    """Check that a folder of this machine can be written to, or made. The check leaves no files.

    Raises:
      UserError: The folder cannot be written to.
    """
    existing = os.path.abspath(folder)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        what = "is a file"
        if not os.path.exists(existing):
            what = f"is a link to {os.readlink(existing)}, which does not exist"
        raise UserError(f"{existing} {what}", folder, "name a folder", kind=INVALID, value=existing)
    try:
        # Permissions alone do not tell, least of all the superuser's: a file system may be
        # read-only or, like /proc, have no new folders.
        os.rmdir(tempfile.mkdtemp(prefix=".rosetta-", dir=existing))
    except OSError as error:
        raise UserError(
            f"{existing} cannot be written to ({error.strerror})",
            folder,
            "name another folder, or ask its owner for permission to write",
            kind=DENIED,
            value=existing,
        ) from None
