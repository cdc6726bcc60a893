"""Checks of folders and files that a user names: on this machine or in an object store."""

from __future__ import annotations

import os
import tempfile

from rosetta.core.errors import DENIED, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.core.value_parsing import split_scheme

CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
# Where Debian and Red Hat keep them: libcurl inside TensorFlow looks at Debian's path only.
SYSTEM_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


def check_is_local(path: str, where: str) -> None:
    """Raise UserError where the path is in an object store: examples are read by position, from
    mapped files.
    """
    scheme = split_scheme(path)[0]
    if scheme:
        tool = {"gs://": "gcloud storage cp -r", "s3://": "aws s3 sync"}.get(scheme, "curl -O")
        raise UserError(
            f"data and vocabularies are read from files, not from {scheme}",
            where,
            f"copy it first ({tool} {path} FOLDER), or mount it",
            kind=UNSUPPORTED,
        )


def check_certificates(*, needed: bool = False) -> None:
    """Raise UserError for a certificate variable that names no file; with `needed`, also where
    there are none at all.

    Seen on Red Hat machines, whose certificates are not where TensorFlow's libcurl looks for them.
    """
    for name in CERTIFICATE_VARIABLES:
        path = os.environ.get(name)
        if path and not os.path.exists(path):
            raise UserError(
                "the certificates are not there",
                f"{name}={path}",
                f"unset {name}, or name an existing file such as {SYSTEM_CERTIFICATES[0]}",
                kind=MISSING,
                value=path,
            )
    if (
        needed
        and not any(os.environ.get(name) for name in CERTIFICATE_VARIABLES)
        and not os.path.exists(SYSTEM_CERTIFICATES[0])
    ):
        there = next((path for path in SYSTEM_CERTIFICATES if os.path.exists(path)), None)
        do = (
            f"export CURL_CA_BUNDLE={there} SSL_CERT_FILE={there}"
            if there
            else "install ca-certificates, or set SSL_CERT_FILE and CURL_CA_BUNDLE"
        )
        raise UserError(
            "no certificates, so no TLS connection can be checked",
            SYSTEM_CERTIFICATES[0],
            do,
            kind=MISSING,
        )


def check_remote_path(path: str) -> None:
    """Check a folder that may be in an object store (MODEL_DIR, a checkpoint): scheme,
    certificates, credentials' presence.

    T5X reads and writes through TensorFlow's file systems. The one for gs:// is part of TensorFlow;
    the one for s3:// has not been since 2.7, and no tensorflow-io exists for the TensorFlow here.

    Raises:
      UserError: what is missing, in one line. Local paths are fine as far as this goes.
    """
    scheme, rest = split_scheme(path)
    if not scheme:
        return
    if scheme == "s3://":
        raise UserError(
            (
                "TensorFlow has no file system for s3:// any more, so T5X can neither read nor "
                "write there"
            ),
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
            "the bucket's name is missing", path, "write gs://BUCKET/FOLDER", kind=INVALID
        )
    check_certificates(needed=True)
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if named and not os.path.isfile(named):
        raise UserError(
            "the credentials are not there",
            f"GOOGLE_APPLICATION_CREDENTIALS={named}",
            "mount the file, or unset it on a Google Cloud machine",
            kind=MISSING,
            value=named,
        )


def check_local_folder_writable(folder: str) -> None:
    """Raise UserError where a folder of this machine cannot be written to or made.

    Leaves nothing.
    """
    existing = os.path.abspath(folder)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        what = (
            "is a file"
            if os.path.exists(existing)
            else f"is a link to {os.readlink(existing)}, which is not there"
        )
        raise UserError(f"{existing} {what}", folder, "name a folder", kind=INVALID, value=existing)
    try:
        # The superuser's permissions say nothing: a file system may be read-only, or take no
        # folders, as /proc.
        os.rmdir(tempfile.mkdtemp(prefix=".rosetta-", dir=existing))
    except OSError as error:
        raise UserError(
            f"{existing} cannot be written to ({error.strerror})",
            folder,
            "name another folder, or have its owner let you write there",
            kind=DENIED,
            value=existing,
        ) from None
