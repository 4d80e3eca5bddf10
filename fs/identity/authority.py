"""The certificate authority of an installation.

    DIRECTORY/authority.key    its key, which only commands on this machine read
    DIRECTORY/authority.pem    its certificate
    DIRECTORY/switch-authority.{key,pem}    of the authority that switches trust: it signs what controllers show to
                               them and nothing else, as Open vSwitch looks at no more than who has signed
    DIRECTORY/revoked.crl      what etcd knows of revoked certificates
    DIRECTORY/issued.json      every certificate that it has issued and that is still valid, and how long new ones are
    DIRECTORY/NAME/            what the process NAME gets with `--identity` (`speedwell.fs.identity.bundle`)

Keys are ECDSA on P-256, which OpenSSL, gRPC and Open vSwitch take.
"""

import hmac
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from speedwell.fs import durable
from speedwell.fs.errors import IdentityError
from speedwell.fs.identity import bearer, files, register
from speedwell.fs.identity.register import CLOCK_SKEW_SECONDS, Certificate
from speedwell.fs.identity.roles import (
    ADDRESSED,
    CONTROLLER,
    SCOPED,
    SERVERS,
    SWITCH,
    checked_name,
    checked_role,
    host_of,
)
from speedwell.fs.identity.scope import Scope

DAY_SECONDS = 86400.0
VALIDITY_SECONDS = 30 * DAY_SECONDS
AUTHORITY_SECONDS = 3650 * DAY_SECONDS
LEAST_VALIDITY_SECONDS = 5.0
_BEGUN = ("lock", "authority.key", files.AUTHORITY)


class Holder(NamedTuple):
    """Whom a certificate is for; `scope` and `address` as in `Certificate`."""

    name: str
    role: str
    scope: str = ""
    address: str = ""


class Signer(NamedTuple):
    """An authority that signs."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


class Authority:
    """Of the installation whose identities are in `directory`. Several processes may use one."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        """Raises IdentityError if there is none."""
        self.directory = directory
        self._clock = clock
        if not (directory / files.AUTHORITY).exists():
            raise IdentityError(f"{directory} holds no certificate authority")

    @classmethod
    def make(cls, directory: Path, clock: Callable[[], float] = time.time) -> "Authority":
        """The one in `directory`, with a new key and certificate if there is none yet. Raises IdentityError for a
        directory with other things in it, which stays as it is."""
        if directory.exists() and not (directory / files.AUTHORITY).exists() and any(
                not path.name.startswith(".") and path.name not in _BEGUN for path in directory.iterdir()):
            raise IdentityError(f"{directory} holds no certificate authority, but other things: name a new directory")
        files.make_directory(directory)
        with files.locked(directory):
            if not (directory / files.AUTHORITY).exists():
                _found(directory / files.AUTHORITY, "Speedwell certificate authority", clock())
        return cls(directory, clock)

    def certificates(self) -> list[Certificate]:
        """All that have not expired or were revoked, and of each name the last, in the order of issuing."""
        return self._issued()[0]

    def newest(self) -> dict[str, Certificate]:
        """The last certificate of each name."""
        return {certificate.name: certificate for certificate in self.certificates()}

    def issue(self, name: str, role: str, scope: Scope | None = None) -> Path:
        """A certificate for a new name, or for one whose certificates were revoked; returns the directory to name
        with `--identity`. Raises IdentityError."""
        checked_name(name)
        checked_role(role)
        if scope is not None and role not in SCOPED:
            raise IdentityError(f"the role {role} is for everybody: only {' and '.join(SCOPED)} are for some users")
        with files.locked(self.directory):
            certificates, validity = self._issued()
            last = next((each for each in reversed(certificates) if each.name == name), None)
            if last is not None and last.revoked_at is None:
                raise IdentityError(f"{name} has a certificate as {last.role} already: `speedwell identity renew "
                                    f"{name}` makes a new one, `revoke` takes it back")
            self._make([Holder(name, role, str(scope or ""), last.address if last is not None else "")],
                       certificates, validity)
            return self.directory / name

    def ensure(self, names: Sequence[tuple[str, str]], address: str = "") -> None:
        """Issue what is missing of (name, role), and renew what is due. What was revoked stays so. `address` is the
        IP address of all members of etcd, and of the controller. Raises IdentityError."""
        for name, role in names:
            checked_name(name)
            checked_role(role)
        with files.locked(self.directory):
            certificates, validity = self._issued()
            newest = {certificate.name: certificate for certificate in certificates}
            # what has another one was issued and not written: an end in the middle
            self._make([Holder(name, role, newest[name].scope if name in newest else "",
                               address if role in ADDRESSED else "") for name, role in names
                        if name not in newest or (newest[name].revoked_at is None
                                                  and newest[name].serial.encode() not in self._head(name))],
                       certificates, validity)
        self.renew_due()

    def renew(self, names: Sequence[str] = (), validity_seconds: float | None = None) -> list[str]:
        """New certificates for `names`, or for all that were not revoked; returns for which. With `validity_seconds`
        they and all later ones are valid for so long. Raises IdentityError, having renewed none."""
        if validity_seconds is not None and not LEAST_VALIDITY_SECONDS <= validity_seconds <= AUTHORITY_SECONDS:
            raise IdentityError(f"validity: {validity_seconds:g} s is not between {LEAST_VALIDITY_SECONDS:g} s and "
                                f"{AUTHORITY_SECONDS / DAY_SECONDS:g} days")
        with files.locked(self.directory):
            certificates, validity = self._issued()
            newest = {certificate.name: certificate for certificate in certificates}
            for name in names:
                if name not in newest:
                    raise IdentityError(f"{name} has no certificate: `speedwell identity list` shows who has")
                if newest[name].revoked_at is not None:
                    raise IdentityError(f"the certificate of {name} was revoked: `speedwell identity issue` gives a "
                                        "new one")
                if newest[name].elsewhere:
                    raise IdentityError(f"{name} is on a machine that has joined, and renewed there")
            chosen = [each for each in newest.values()
                      if each.revoked_at is None and not each.elsewhere and (not names or each.name in names)]
            self._make([Holder(each.name, each.role, each.scope, each.address) for each in chosen], certificates,
                       validity_seconds or validity)
            return [each.name for each in chosen]

    def renew_due(self) -> list[str]:
        """Renew what is in the last third of its time or past its end; returns whose."""
        now = self._clock()
        due = [name for name, certificate in self.newest().items()
               if certificate.revoked_at is None and not certificate.elsewhere and certificate.is_due(now)]
        if not due and not (self.directory / files.SWITCH_AUTHORITY).exists():
            with files.locked(self.directory):
                self._make([], *self._issued())
        return self.renew(due) if due else []

    def to_switches(self, certificate: x509.Certificate) -> bytes:
        """What the controller with that certificate shows to switches: the same for the same key, but of the
        authority that they trust; in front of it a line that changes with either. Raises IdentityError."""
        with files.locked(self.directory):
            return _signed_again(certificate, self._signer_to_switches())

    def enrol(self, keys: Mapping[Holder, ec.EllipticCurvePublicKey], *, renews: bool = False) -> dict[str, bytes]:
        """Certificates for keys that others hold; by name, what their `files.CERTIFICATE` has in front of the key.
        Raises IdentityError where one `renews` what was revoked."""
        with files.locked(self.directory):
            certificates, validity = self._issued()
            newest = {each.name: each for each in certificates}
            for holder in keys if renews else ():
                if holder.name in newest and newest[holder.name].revoked_at is not None:
                    raise IdentityError(f"the certificate of the {holder.role} {holder.name} was revoked")
            signed = self._sign(list(keys.items()), certificates, validity, elsewhere=True)
            self._save(certificates, validity)
            return {holder.name: each for holder, each in zip(keys, signed, strict=True)}

    def secret(self, purpose: str) -> str:
        """Of 64 hexadecimal digits, for one purpose: the same for as long as there is this authority, also on the
        machine that goes on from its copy."""
        return hmac.new(private_pem(self._signer().key), purpose.encode(), "sha256").hexdigest()

    def learn(self, shown: Certificate) -> None:
        """Note one that this authority has signed and, as it goes on from a copy, does not know."""
        with files.locked(self.directory):
            certificates, validity = self._issued()
            if all(each.serial != shown.serial for each in certificates):
                self._save([*certificates, shown], validity)

    def revoke(self, name: str) -> None:
        """No server takes any certificate of that name from now on; where it is a controller's, switches get another
        authority to trust. Raises IdentityError."""
        with files.locked(self.directory):
            certificates, validity = self._issued()
            if all(each.name != name or each.revoked_at is not None for each in certificates):
                raise IdentityError(f"{name} has no certificate that could be revoked: `speedwell identity list` "
                                    "shows who has")
            now = self._clock()
            left = [replace(each, revoked_at=now) if each.name == name and each.revoked_at is None else each
                    for each in certificates]
            if any(each.name == name and each.role == CONTROLLER for each in left):
                # Open vSwitch asks nobody what was revoked
                (self.directory / files.SWITCH_AUTHORITY).unlink(missing_ok=True)
                self._make([], left, validity)
            else:
                self._save(left, validity)

    # ------------------------------------------------------------------ private

    def _head(self, name: str) -> bytes:
        """What stands in front of the certificate that NAME has; empty if it has none."""
        try:
            return (self.directory / name / files.CERTIFICATE).read_bytes().partition(b"\n")[0]
        except FileNotFoundError:
            return b""

    def _issued(self) -> tuple[list[Certificate], float]:
        found, validity = register.read(self.directory)
        return found, validity or VALIDITY_SECONDS

    def _save(self, certificates: Sequence[Certificate], validity_seconds: float) -> None:
        now = self._clock()
        newest = {each.name: each for each in certificates}
        # The clock may be wrong: what was revoked is not forgotten because of what it shows.
        kept = [each for each in certificates
                if each.expires_at > now or each.revoked_at is not None or newest[each.name] is each]
        register.write(self.directory, kept, validity_seconds)
        revoked = json.dumps({each.serial: f"{each.role} {each.name}" for each in kept
                              if each.revoked_at is not None}).encode()
        durable.replace_others((self.directory / name / files.REVOKED, revoked) for name in newest
                             if (self.directory / name).is_dir())
        bearer.spread(self.directory)
        authority = self._signer()
        listed = x509.CertificateRevocationListBuilder().issuer_name(authority.certificate.subject).last_update(
            _time(now)).next_update(_time(now + AUTHORITY_SECONDS))
        for each in kept:
            if each.revoked_at is not None:
                listed = listed.add_revoked_certificate(x509.RevokedCertificateBuilder().serial_number(
                    int(each.serial, 16)).revocation_date(_time(each.revoked_at)).build())
        durable.replace(self.directory / files.REVOCATION_LIST,
                      listed.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _signer(self, name: str = files.AUTHORITY) -> Signer:
        place = self.directory / name
        try:
            certificate = x509.load_pem_x509_certificate(place.read_bytes())
            key = serialization.load_pem_private_key(place.with_suffix(".key").read_bytes(), None)
        except ValueError:
            raise IdentityError(f"the authority's key or certificate in {self.directory} is damaged") from None
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return Signer(certificate, key)

    def _signer_to_switches(self) -> Signer:
        """Made where an earlier version, or who wants another one, has left none."""
        if not (self.directory / files.SWITCH_AUTHORITY).exists():
            _found(self.directory / files.SWITCH_AUTHORITY, "Speedwell authority of controllers", self._clock())
        return self._signer(files.SWITCH_AUTHORITY)

    def _make(self, holders: Sequence[Holder], certificates: list[Certificate], validity_seconds: float) -> None:
        """Extends `certificates`."""
        keys = [ec.generate_private_key(ec.SECP256R1()) for _ in holders]
        signed = self._sign([(holder, key.public_key()) for holder, key in zip(holders, keys, strict=True)],
                            certificates, validity_seconds)
        written = [each + private_pem(key) for each, key in zip(signed, keys, strict=True)]
        places = [files.make_directory(self.directory / holder.name) for holder in holders]
        for left in [path for place in places for path in place.glob(".*.*.[0-9]*")]:
            left.unlink()   # by who was killed: nobody else writes there meanwhile
        to_switches = self._signer_to_switches()
        here = {place: each for each in certificates if (place := self.directory / each.name).is_dir()}
        trusted = {is_switch: (self.directory / name).read_bytes()
                   for is_switch, name in ((False, files.AUTHORITY), (True, files.SWITCH_AUTHORITY))}
        durable.replace_others((place / files.AUTHORITY, trusted[each.role == SWITCH])
                               for place, each in here.items())
        self._save(certificates, validity_seconds)
        durable.replace_all([(place / files.CERTIFICATE, content)
                           for place, content in zip(places, written, strict=True)])
        for place, each in here.items():
            own = place / files.CERTIFICATE
            if each.role == CONTROLLER and each.revoked_at is None and own.exists():
                whole = own.read_bytes()
                files.replace_with(place / files.TO_SWITCHES, _signed_again(
                    x509.load_pem_x509_certificate(whole), to_switches), files.key_in(whole))

    def _sign(self, keys: Sequence[tuple[Holder, ec.EllipticCurvePublicKey]], certificates: list[Certificate],
              validity_seconds: float, *, elsewhere: bool = False) -> list[bytes]:
        """Extends `certificates`."""
        now = self._clock()
        authority = self._signer()
        signed = []
        for holder, key in keys:
            made = _certificate(holder, authority, key, now, validity_seconds)
            certificates.append(Certificate(serial=f"{made.serial_number:X}", issued_at=now, elsewhere=elsewhere,
                                            expires_at=now + validity_seconds, **holder._asdict()))
            # The text in front of the first block is for `speedwell.fs.identity.bundle`; OpenSSL passes over it.
            signed.append(json.dumps(asdict(certificates[-1])).encode() + b"\n"
                          + made.public_bytes(serialization.Encoding.PEM))
        return signed


def _found(place: Path, name: str, now: float) -> None:
    """A new authority, its key beside its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Speedwell"),
                         x509.NameAttribute(NameOID.COMMON_NAME, name)])
    # the clock may be wrong: the authority is good before, too
    certificate = _builder(subject, subject, key.public_key(), now - AUTHORITY_SECONDS,
                           now + AUTHORITY_SECONDS).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True).add_extension(
        _usage(sign_certificates=True), critical=True).add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False).sign(key, hashes.SHA256())
    durable.replace(place.with_suffix(".key"), private_pem(key))
    durable.replace(place, certificate.public_bytes(serialization.Encoding.PEM))


def _signed_again(certificate: x509.Certificate, signer: Signer) -> bytes:
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    made = _builder(certificate.subject, signer.certificate.subject, key,
                    *(_seconds(certificate, when) for when in ("not_valid_before", "not_valid_after")))
    for extension in certificate.extensions:
        if not isinstance(extension.value, x509.AuthorityKeyIdentifier):
            made = made.add_extension(extension.value, extension.critical)
    head = f"{certificate.serial_number:X} {signer.certificate.fingerprint(hashes.SHA256()).hex()}\n"
    return head.encode() + made.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False).sign(
        signer.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _certificate(holder: Holder, authority: Signer, key: ec.EllipticCurvePublicKey, now: float,
                 validity_seconds: float) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Speedwell"),
                         x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, holder.role),
                         x509.NameAttribute(NameOID.COMMON_NAME, holder.name)])
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH,
                *([ExtendedKeyUsageOID.SERVER_AUTH] if holder.role in SERVERS else [])]
    return _builder(subject, authority.certificate.subject, key, now - CLOCK_SKEW_SECONDS,
                    now + validity_seconds).add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True).add_extension(
        _usage(sign_certificates=False), critical=True).add_extension(
        x509.ExtendedKeyUsage(purposes), critical=False).add_extension(
        x509.SubjectAlternativeName([
            x509.DNSName(host_of(holder.role)),
            x509.UniformResourceIdentifier(f"speedwell://{holder.role}/{holder.name}"),
            *([x509.DNSName(holder.role), x509.IPAddress(ip_address(holder.address))] if holder.address else []),
            *([x509.UniformResourceIdentifier(holder.scope)] if holder.scope else [])]),
        critical=False).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False).sign(
        authority.key, hashes.SHA256())


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begins_at: float,
             ends_at: float) -> x509.CertificateBuilder:
    return x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(
        key).serial_number(x509.random_serial_number()).not_valid_before(
        _time(begins_at)).not_valid_after(_time(ends_at))


def _seconds(certificate: x509.Certificate, when: str) -> float:
    """Since 1970. cryptography has times with a zone from its release 42 on, and warns then of those without."""
    found: datetime | None = getattr(certificate, f"{when}_utc", None)
    return (found or getattr(certificate, when).replace(tzinfo=UTC)).timestamp()


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(digital_signature=not sign_certificates, content_commitment=False, key_encipherment=False,
                         data_encipherment=False, key_agreement=False, key_cert_sign=sign_certificates,
                         crl_sign=sign_certificates, encipher_only=False, decipher_only=False)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                             serialization.NoEncryption())
