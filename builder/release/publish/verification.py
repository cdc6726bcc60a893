"""Verify a published image: whether it is complete, and whether a key signed it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.images.oci import oci_documents
from builder.images.registry import download
from builder.images.registry.transport import MismatchError
from builder.images.registry.upload import has_blob
from builder.release.publish import attachments, signed_statements
from builder.release.publish.signed_statements import SIMPLE, UntrustedError
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.images.registry.download import Document
    from builder.images.registry.transport import Connection
    from builder.release.publish.signed_statements import Attachment
    from builder.release.publish.signing_key import PublicKey

SIGNATURE = "signature"  # stands for the predicate type of a signature, which has none
# The types of the statements that the index and every image must have.
REQUIRED = (SIGNATURE, signed_statements.SBOM, signed_statements.PROVENANCE)


@dataclass
class TrustedStatements:
    """The attachments of an image or of an index, by whether a key signed them.

    Attributes:
        predicates: The signed predicates by their type. A signature has the type "signature" and
            an empty predicate.
        media_types: In which forms each type is signed: envelopes and bundles have the same
            predicates.
        rejections: Why each other attachment is not trusted, by the kind that it claims to be.
    """

    predicates: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    media_types: dict[str, set[str]] = field(default_factory=dict)
    rejections: dict[str, list[str]] = field(default_factory=dict)

    def add(self, predicate_type: str, predicate: dict[str, Any], media_type: str) -> None:
        """Add a trusted predicate, unless another attachment has the same one."""
        self.media_types.setdefault(predicate_type, set()).add(media_type)
        predicates = self.predicates.setdefault(predicate_type, [])
        if predicate not in predicates:
            predicates.append(predicate)

    def find_problem(self, predicate_type: str) -> str:
        """Return why there is no trusted statement of a type, or "" if there is one."""
        if self.predicates.get(predicate_type):
            return ""
        name = signed_statements.PREDICATE_NAMES.get(predicate_type, predicate_type)
        rejections = self.rejections.get(name, [])
        reason = rejections[0] if rejections else "is missing"
        return f"the {name} {reason}"


@dataclass(frozen=True)
class Check:
    """One check. `problem` is "" if it passed."""

    name: str
    problem: str = ""

    def __str__(self) -> str:
        line = f"{'FAILED' if self.problem else 'ok':<8}{self.name}"
        return f"{line}: {self.problem}" if self.problem else line

    def as_json(self) -> dict[str, Any]:
        """Return the check for `--json`."""
        return {"what": self.name, "ok": not self.problem, "problem": self.problem or None}


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        digest: The digest of the index.
        checks: All checks.
        statements: The trusted statements of the index ("index") and of each platform's image.
    """

    digest: str
    checks: tuple[Check, ...]
    statements: dict[str, TrustedStatements]

    @property
    def ok(self) -> bool:
        """Whether all checks passed."""
        return not any(check.problem for check in self.checks)

    @property
    def index_statements(self) -> TrustedStatements:
        """The trusted statements of the index."""
        return self.statements.get("index", TrustedStatements())

    def with_check(self, check: Check) -> Verification:
        """Return this verification with one more check."""
        return Verification(self.digest, (*self.checks, check), self.statements)

    def describe_first_problem(self) -> str:
        """Return the first check that failed with its problem, or "" if all passed."""
        for check in self.checks:
            if check.problem:
                return f"{check.name}: {check.problem}"
        return ""


@dataclass(frozen=True)
class VerificationOptions:
    """How to verify an image.

    Attributes:
        read_blobs: Whether to read and hash the layers too, in place of only comparing their
            sizes. Configs are always read.
        require_test: Whether a signed test result that has passed is required.
        repository: The HOST/NAME that everything must be signed for. Default: the repository of
            the connection.
    """

    read_blobs: bool
    require_test: bool = False
    repository: str = ""


def read_trusted_statements(
    connection: Connection,
    digest: str,
    key: PublicKey,
    repository: str = "",
    *,
    all_forms: bool = False,
) -> TrustedStatements:
    """Read the attachments of an image, and tell those that a key signed from the others.

    Args:
        connection: The connection to the repository.
        digest: The digest of the image or of the index.
        key: The key.
        repository: The HOST/NAME that they must be signed for. Default: the repository of the
            connection.
        all_forms: Whether to read a bundle of a type, too, if one statement of this type is enough
            and was read already.
    """
    repository = repository or connection.reference.repository
    statements = TrustedStatements()

    def is_bundle_needed(predicate_type: str) -> bool:
        is_signature = predicate_type == signed_statements.COSIGN_SIGN
        kind = SIGNATURE if is_signature else predicate_type
        return all_forms or kind not in REQUIRED or kind not in statements.predicates

    for attachment in attachments.iterate_attachments(connection, digest, is_bundle_needed):
        try:
            predicate_type, predicate = _open_attachment(attachment, key, digest, repository)
        except UntrustedError as problem:
            statements.rejections.setdefault(attachment.claimed_kind, []).append(str(problem))
        else:
            statements.add(predicate_type, predicate, attachment.media_type)
    return statements


def _open_attachment(
    attachment: Attachment, key: PublicKey, digest: str, repository: str
) -> tuple[str, dict[str, Any]]:
    """Return the type and the predicate of a signature or of a signed statement.

    Raises:
        UntrustedError: the key did not sign it for this image in this repository.
    """
    if attachment.media_type == SIMPLE:
        signed_statements.check_signature(attachment, key, digest, repository)
        return SIGNATURE, {}
    predicate_type, predicate = signed_statements.open_attestation(
        attachment, key, digest, repository
    )
    if predicate_type == signed_statements.COSIGN_SIGN:
        return SIGNATURE, {}
    return predicate_type, predicate


def verify_image(
    connection: Connection, index: Document, key: PublicKey, options: VerificationOptions
) -> Verification:
    """Verify an index, the image of every platform, and what is attached to them.

    Args:
        connection: The connection to the repository.
        index: The index.
        key: The key that must have signed everything.
        options: How to verify.
    """
    return _Verifier(connection, key, options).verify(index)


class _Verifier:
    """Collects the checks of one index."""

    def __init__(
        self, connection: Connection, key: PublicKey, options: VerificationOptions
    ) -> None:
        self.connection = connection
        self.key = key
        self.options = options
        self.checks: list[Check] = []
        self.statements: dict[str, TrustedStatements] = {}

    def verify(self, index: Document) -> Verification:
        """Run all checks."""
        if index.media_type != oci_documents.INDEX:
            self._add("index", "this is the image of one platform, not an index over all platforms")
        else:
            self._check_statements("index", index.digest)
            images: dict[str, str] = {}

            def find_platform_problem() -> str:
                images.update(self._list_images(index))
                return self._find_platform_problem(set(images))

            self._run("index: platforms", find_platform_problem)
            for platform, digest in sorted(images.items()):
                self._check_image(platform, digest)
                self._check_statements(platform, digest)
        return Verification(index.digest, tuple(self.checks), self.statements)

    def _add(self, name: str, problem: str) -> None:
        self.checks.append(Check(name, problem))

    def _run(self, name: str, find_problem: Callable[[], str]) -> None:
        """Run and add a check. It fails too if `find_problem` raises a UserError."""
        try:
            problem = find_problem()
        except UserError as error:
            problem = error.what
        self._add(name, problem)

    def _check_statements(self, subject: str, digest: str) -> None:
        """Check the statements that are attached to an index or image.

        Args:
            subject: "index", or the platform of the image.
            digest: The digest of the index or image.
        """
        statements = TrustedStatements()
        problem = ""
        try:
            statements = read_trusted_statements(
                self.connection, digest, self.key, self.options.repository
            )
        except UserError as error:
            problem = error.what
        else:
            self.statements[subject] = statements
        self._add(f"{subject}: attachments", problem)
        required = list(REQUIRED)
        if self.options.require_test and subject == "index":
            required.append(signed_statements.TEST)
        for predicate_type in required:
            name = signed_statements.PREDICATE_NAMES.get(predicate_type, predicate_type)
            problem = statements.find_problem(predicate_type) or _find_problem_in_predicates(
                predicate_type, statements.predicates[predicate_type], digest
            )
            self._add(f"{subject}: {name}", problem)

    def _list_images(self, index: Document) -> dict[str, str]:
        """Return the digest of each platform's image. A repeated platform fails a check."""
        images: dict[str, str] = {}
        for descriptor in _read_descriptors(index.json(), "manifests"):
            platform = descriptor.get("platform") or {}
            name = f"{platform.get('os')}/{platform.get('architecture')}"
            if name in images:
                self._add(f"index: {name}", "the index lists this platform twice")
            images[name] = str(descriptor.get("digest"))
        return images

    def _find_platform_problem(self, platforms: set[str]) -> str:
        """Return how the platforms differ from those of the signed provenance, or "".

        Only the first provenance that lists platforms counts.
        """
        statements = self.statements.get("index", TrustedStatements())
        for provenance in statements.predicates.get(signed_statements.PROVENANCE, []):
            try:
                parameters = provenance["buildDefinition"]["externalParameters"]
                built = {f"linux/{architecture}" for architecture in parameters["architectures"]}
            except (KeyError, TypeError):
                continue
            if missing := built - platforms:
                return f"missing from the index: {', '.join(sorted(missing))}"
            if others := platforms - built:
                return f"not in the signed provenance: {', '.join(sorted(others))}"
            return ""
        return "no signed provenance lists the platforms"

    def _check_image(self, platform: str, digest: str) -> None:
        self._run(f"{platform}: image", lambda: self._find_image_problem(platform, digest))

    def _find_image_problem(self, platform: str, digest: str) -> str:
        """Return what is wrong with the manifest, the config or the layers of an image, or ""."""
        manifest = download.read_document(self.connection, digest).json()
        config = manifest.get("config") or {}
        descriptors = [config, *_read_descriptors(manifest, "layers")]
        for descriptor in descriptors:
            blob, size = str(descriptor.get("digest")), descriptor.get("size")
            if not isinstance(size, int) or not blob.startswith("sha256:"):
                return "an entry of its manifest lacks a sha256 digest or a size"
            if not has_blob(self.connection, blob, size):
                return f"blob {_shorten_digest(blob)} is missing"
        to_read = descriptors if self.options.read_blobs else [config]
        problem = self._find_first_blob_problem(to_read)
        if problem:
            return problem
        config_platform = self._read_platform(str(config["digest"]))
        return "" if config_platform == platform else f"its config is for {config_platform}"

    def _find_first_blob_problem(self, descriptors: Sequence[dict[str, Any]]) -> str:
        """Read blobs in parallel, and return the first problem, or ""."""
        problems: list[str] = self.connection.map_threads(
            self._find_blob_problem,
            [(str(descriptor["digest"]), int(descriptor["size"])) for descriptor in descriptors],
        )
        return next(filter(None, problems), "")

    def _find_blob_problem(self, digest: str, size: int) -> str:
        """Read a blob without storing it, and return what is wrong with it, or ""."""

        def read_blob() -> None:
            byte_count, sha256 = 0, hashlib.sha256()
            response = self.connection.request(
                "GET",
                self.connection.url(f"blobs/{digest}"),
                (200,),
                headers={"Accept-Encoding": "identity"},
                follow=True,
                stream=True,
            )
            for piece in self.connection.read_pieces(response, size):
                byte_count += len(piece)
                sha256.update(piece)
            if byte_count != size or f"sha256:{sha256.hexdigest()}" != digest:
                raise MismatchError("its content does not match its digest")

        try:
            self.connection.retry(f"reading blob {_shorten_digest(digest)}", read_blob)
        except UserError as error:
            return error.what
        return ""

    def _read_platform(self, config: str) -> str:
        """Return the platform that the config of an image names."""
        blob = download.read_small_blob(self.connection, config)
        document = download.Document("", config, blob).json()
        return f"{document.get('os')}/{document.get('architecture')}"


def _find_problem_in_predicates(
    predicate_type: str, predicates: Sequence[dict[str, Any]], digest: str
) -> str:
    """Return what is wrong with signed statements of one type, or "".

    Every SBOM must describe this image, and at least one test must have passed. Nothing is required
    of other types.

    Args:
        predicate_type: The type.
        predicates: The predicates of the statements, at least one.
        digest: The digest of the index or image that they are attached to.
    """
    if predicate_type == signed_statements.SBOM:
        image_hash = {"alg": "SHA-256", "content": digest.removeprefix("sha256:")}
        for sbom in predicates:
            component = (sbom.get("metadata") or {}).get("component") or {}
            if image_hash not in (component.get("hashes") or []):
                return "its metadata does not describe this image"
    if predicate_type == signed_statements.TEST:
        # WARNED: all tests passed but those that the machine of the suite could not run.
        has_passed = any(test.get("result") in ("PASSED", "WARNED") for test in predicates)
        return "" if has_passed else "no test has passed"
    return ""


def _shorten_digest(digest: str) -> str:
    """Return the first 12 hexadecimal digits of a digest "sha256:…"."""
    return f"{digest.removeprefix('sha256:')[:12]}…"


def _read_descriptors(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the descriptors that a manifest or an index lists under a key.

    Raises:
        UserError: The document has no such list.
    """
    descriptors = document.get(key)
    if not isinstance(descriptors, list) or not all(
        isinstance(descriptor, dict) for descriptor in descriptors
    ):
        raise UserError(f"the document has no list {key!r}")
    return descriptors
