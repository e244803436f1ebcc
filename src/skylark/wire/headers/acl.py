"""Headers of user and access-control administration (ACL 2.0).

Content is in the body; the header names the user or the subject (``User:name``). Counterpart of
Java's ``CreateUserRequestHeader``, ``CreateAclRequestHeader`` and others.
"""

from __future__ import annotations

from skylark.wire.fields import Header


class UserRequestHeader(Header, kw_only=True, rename="camel"):
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER, AUTH_GET_USER."""

    username: str | None = None


class ListUsersRequestHeader(Header, kw_only=True, rename="camel"):
    """AUTH_LIST_USER."""

    filter: str | None = None


class AclRequestHeader(Header, kw_only=True, rename="camel"):
    """AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_GET_ACL."""

    subject: str | None = None


class DeleteAclRequestHeader(Header, kw_only=True, rename="camel"):
    """AUTH_DELETE_ACL."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class ListAclsRequestHeader(Header, kw_only=True, rename="camel"):
    """AUTH_LIST_ACL."""

    subject_filter: str | None = None
    resource_filter: str | None = None
