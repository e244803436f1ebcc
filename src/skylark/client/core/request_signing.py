"""Fields that a client adds to every request before it is sent, in this order:

1. namespace v2: ``nsd=true`` and ``ns=<namespace>``;
2. stream type: ``ReqT=0``, for clients that pull;
3. changes by hooks of the application (:class:`~skylark.client.core.hooks.RpcHook`);
4. access key and signature over all of that;
5. the zone, ``__ZONE_NAME`` and ``__ZONE_MODE``, for name servers only.

The zone is not signed. Java's client adds it to requests for brokers too; a broker that checks
signatures refuses them, because it signs all fields that it finds. Only name servers use the zone.
A request that is sent again passes here again: fields are set, never added twice. Counterpart of
Java's ``NamespaceRpcHook``, ``StreamTypeRPCHook``, ``AclClientRPCHook`` and
``DynamicalExtFieldRPCHook``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from skylark.auth.signature import Credentials, add_signature
from skylark.client.core.hooks import call_hooks, hook_methods
from skylark.wire.command import Command

NAMESPACED: Final = "nsd"
NAMESPACE: Final = "ns"
REQUEST_TYPE: Final = "ReqT"
STREAM: Final = "0"


class RequestChain:
    """The additions of one client; used from the control and the data plane."""

    def __init__(
        self,
        *,
        namespace_v2: str | None = None,
        stream: bool = False,
        hooks: Iterable[object] = (),
        credentials: Credentials | None = None,
        zone: Mapping[str, str] | None = None,
    ) -> None:
        """``zone``: the entries for name servers, see ``ClientOptions.zone_entries``."""
        self._fixed: dict[str, str] = {}
        if namespace_v2:
            self._fixed.update({NAMESPACED: "true", NAMESPACE: namespace_v2})
        if stream:
            self._fixed[REQUEST_TYPE] = STREAM
        hooks = tuple(hooks)
        self._before = hook_methods(hooks, "before_request")
        self._after = hook_methods(hooks, "after_response")
        self._credentials = credentials
        self._zone = dict(zone or {})
        #: Whether requests for brokers get no additions, so that callers may skip this.
        self.is_empty = not (self._fixed or self._before or self._after or credentials)

    def before(self, address: str, request: Command) -> None:
        """Add the fields to a request for a broker; raises errors of hooks."""
        if self._fixed:
            request.ext = {**(request.ext or {}), **self._fixed}
        for hook in self._before:
            hook(address, request)
        if self._credentials is not None:
            add_signature(request, self._credentials)

    def before_name_server(self, address: str, request: Command) -> None:
        """Add the fields to a request for a name server."""
        if self._zone and request.ext:
            request.ext = {k: v for k, v in request.ext.items() if k not in self._zone}
        self.before(address, request)
        if self._zone:
            request.ext = {**(request.ext or {}), **self._zone}

    def after(self, address: str, request: Command, response: Command) -> None:
        """Call the hooks with a response."""
        if self._after:
            call_hooks(self._after, address, request, response)
