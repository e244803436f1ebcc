"""The signature of a request, the same for ACL 1.0 and 2.0.

The client puts ``AccessKey`` (and ``SecurityToken``, if it has one) into the ext map beside the
header fields. What is signed is the *values* of all ext entries, ordered by key and joined without
separator, followed by the raw body::

    ext {AccessKey: rocketmq2, topic: TopicTest}  ->  b"rocketmq2TopicTest"
    Signature = Base64(HMAC-SHA1(secret key, content))

The server computes it again over the received entries, unknown ones included, without
``Signature``. Clients up to 4.9.3 added ``_UNIQUE_KEY_QUERY`` after signing, so for them it is left
out. Values are joined without lengths, and there is no protection against replay: this does not
replace TLS. Counterpart of Java's ``AclClientRPCHook`` and ``AclSigner``.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping

import msgspec

from skylark.wire.codes import V4_9_3
from skylark.wire.command import Command

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of an ext entry
SIGNATURE = "Signature"
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a client. The secret key is never logged."""

    access_key: str
    secret_key: str
    security_token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r})"


def _java_order(name: str) -> bytes:
    """Java compares strings by UTF-16 units, which differs from code points beyond U+FFFF."""
    return name.encode("utf-16-be", "surrogatepass")


def signed_content(ext: Mapping[str, str] | None, body: bytes | None) -> bytes:
    """The bytes that are signed: values in key order without ``Signature``, then the body."""
    if not ext:
        return body or b""
    names = sorted(ext, key=None if all(map(str.isascii, ext)) else _java_order)
    text = "".join([ext[name] for name in names if name != SIGNATURE])
    # Java writes a lone surrogate as a question mark, and so does "replace".
    return text.encode("utf-8", "replace") + (body or b"")


def sign(ext: Mapping[str, str] | None, body: bytes | None, secret_key: str) -> str:
    """The signature of a request whose ext map already holds the header and the access key."""
    digest = hmac.digest(secret_key.encode(), signed_content(ext, body), "sha1")
    return base64.b64encode(digest).decode("ascii")


def verify(
    ext: Mapping[str, str] | None, body: bytes | None, secret_key: str, *, version: int
) -> bool:
    """Whether the request was signed with this key; ``version`` is that of its frame header."""
    given = ext.get(SIGNATURE) if ext else None
    if ext is None or given is None:
        return False
    if version <= V4_9_3 and _UNIQUE_KEY_QUERY in ext:
        ext = {name: value for name, value in ext.items() if name != _UNIQUE_KEY_QUERY}
    expected = sign(ext, body, secret_key)
    return hmac.compare_digest(expected.encode("ascii"), given.encode("utf-8", "replace"))


def add_signature(command: Command, credentials: Credentials) -> None:
    """Sign a request in place; its header must be in ``ext`` and its body set before."""
    ext = dict(command.ext or {})
    ext[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        ext[SECURITY_TOKEN] = credentials.security_token
    ext[SIGNATURE] = sign(ext, command.body, credentials.secret_key)
    command.ext = ext
    command.ext_entries = None
