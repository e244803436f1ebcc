"""Users (3001-3005) and access control lists (3006-3010).

Counterpart of Java's ``UserInfo``, ``PolicyEntryInfo``, ``PolicyInfo`` and ``AclInfo``.
"""

from __future__ import annotations

from skylark.wire.bodies.common_body import Body


class UserInfo(Body, kw_only=True):
    """One user; absent members are left as they are by an update."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None  # Super or Normal
    user_status: str | None = None  # enable or disable


class PolicyEntryInfo(Body, kw_only=True):
    """What may, or may not, be done with a resource."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None  # Allow or Deny


class PolicyInfo(Body, kw_only=True):
    """Entries of one rank: Custom before Default."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Body, kw_only=True):
    """The policies of one subject, ``User:name``."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None
