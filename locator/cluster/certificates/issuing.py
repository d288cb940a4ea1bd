# SPDX-License-Identifier: Apache-2.0

"""X.509: issues the webhook's own certificates, and reads any. Only this module imports ``cryptography``.

API servers trust the webhook's certificate authority (CA) for calls of the webhook, and for nothing else.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SKEW = timedelta(hours=1)  # by which the clock of an API server may be slow
# What reading a certificate raises; all but the first for an extension or a version that breaks a rule.
_UNREADABLE = (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, x509.InvalidVersion)


class BadCertificate(Exception):
    """A certificate or its key cannot be used. The text says why."""


class Pair(NamedTuple):
    """A certificate, perhaps with the chain that leads to its CA, and its private key, both in PEM."""

    certificate: bytes
    key: bytes


class CertificateFacts(NamedTuple):
    """What a certificate says: the names and addresses that it is for, and when it is valid (Unix time)."""

    names: frozenset[str]
    begins: float
    ends: float


def facts_of(certificate: bytes) -> CertificateFacts:
    """Return what the first certificate in a PEM text says. Raises BadCertificate."""
    try:
        first = x509.load_pem_x509_certificates(certificate)[0]
        try:
            given = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            addresses = given.get_values_for_type(x509.IPAddress)
            names = [*given.get_values_for_type(x509.DNSName), *map(str, addresses)]
        except x509.ExtensionNotFound:
            names = []
    except _UNREADABLE as error:
        raise BadCertificate(f"no certificate found ({_one_line(error)}), expected PEM") from None
    return CertificateFacts(
        frozenset(names), first.not_valid_before_utc.timestamp(), first.not_valid_after_utc.timestamp()
    )


def is_issued_by(authority: bytes, certificate: bytes) -> bool:
    """Whether the first CA in a PEM text has signed the first certificate in another. Both must be readable."""
    authorities, issued = map(x509.load_pem_x509_certificates, (authority, certificate))
    try:
        issued[0].verify_directly_issued_by(authorities[0])
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def certificates_in(bundle: bytes) -> list[bytes]:
    """Return the certificates of a PEM text, each in PEM; none if it is unreadable."""
    try:
        found = x509.load_pem_x509_certificates(bundle)
    except _UNREADABLE:
        return []
    return [certificate.public_bytes(serialization.Encoding.PEM) for certificate in found]


def new_authority(now: float, lifetime: float) -> Pair:
    """Return a new CA. *now* is Unix time, *lifetime* is in seconds."""
    begins, ends = datetime.fromtimestamp(now, UTC) - SKEW, datetime.fromtimestamp(now + lifetime, UTC)
    key, serial = ec.generate_private_key(ec.SECP256R1()), x509.random_serial_number()
    # No two have the same name: an API server has two of them in its bundle, and looks for the issuer by its name.
    name = _name(f"topodns webhook CA {serial:x}")
    authority = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(authority, key)


def issue(authority: Pair, names: Collection[str], now: float, lifetime: float) -> Pair:
    """Return a certificate by a CA of ``new_authority`` for *names*, which are domain names and IP addresses.

    *now* is Unix time, *lifetime* is in seconds; the certificate ends with its CA at the latest.
    """
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing_key = serialization.load_pem_private_key(authority.key, password=None)
    if not isinstance(signing_key, ec.EllipticCurvePrivateKey):
        raise BadCertificate("the CA's key is of another kind, expected one by topodns")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_name("topodns webhook"))
        .issuer_name(signer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(now, UTC) - SKEW)
        .not_valid_after(min(datetime.fromtimestamp(now + lifetime, UTC), signer.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName(list(map(_general_name, sorted(names)))), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    return _pair(certificate, key)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    pem = serialization.Encoding.PEM
    key_pem = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(certificate.public_bytes(pem), key_pem)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
