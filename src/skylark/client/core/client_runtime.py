"""Runtime of a client: its control loop, network and clock.

Applications do not use it: the default is the control thread of the process, TCP and the machine's
clock. The test brokers of :mod:`skylark.testing` put another one into their ``options``, with
everything on one loop.
"""

from __future__ import annotations

import msgspec

from skylark.client.core.client_options import ClientOptions
from skylark.client.core.control_loop import Control, InlineControl, shared_control
from skylark.core.clock import Clock, LoopClock
from skylark.core.errors import ConfigError
from skylark.net.transport import Network, TcpNetwork


class ClientRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """Control loop, network and clock, shared by all parts of a client."""

    control: Control
    network: Network
    clock: Clock
    #: whether the first pull of a queue waits, so that another member can save its offset
    delays_first_pull: bool = True


def default_runtime() -> ClientRuntime:
    """The control thread of this process, and TCP."""
    return ClientRuntime(control=shared_control(), network=TcpNetwork(), clock=LoopClock())


def runtime_of(options: ClientOptions, given: ClientRuntime | None = None) -> ClientRuntime | None:
    """The given runtime, else that of the options, else None for the default."""
    runtime = given or options.runtime
    if runtime is not None and not isinstance(runtime, ClientRuntime):
        raise ConfigError(
            f"runtime must be that of a test broker, not a {type(runtime).__name__}",
            hint="skylark.testing.broker() has it in its options",
        )
    return runtime


def inline_runtime(
    network: Network | None = None, clock: Clock | None = None, *, delays_first_pull: bool = True
) -> ClientRuntime:
    """Control and data plane on the running loop, which must not be blocked."""
    return ClientRuntime(
        control=InlineControl(),
        network=network or TcpNetwork(),
        clock=clock or LoopClock(),
        delays_first_pull=delays_first_pull,
    )
