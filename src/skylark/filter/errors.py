"""The error of filters that clients see: a subscription expression is invalid."""

from __future__ import annotations

from skylark.core.errors import BrokerError


class FilterSyntaxError(BrokerError):
    """A subscription expression is invalid (SUBSCRIPTION_PARSE_FAILED).

    ``position`` is the index of the invalid character; None in an error that a broker reported,
    whose text has its own description of the place.
    """

    code = 23

    def __init__(
        self,
        problem: str,
        *,
        position: int | None = 0,
        hint: str | None = None,
        broker_address: str | None = None,
    ) -> None:
        where = "" if position is None else f" at character {position + 1}"
        super().__init__(problem + where, hint=hint, broker_address=broker_address)
        self.problem = problem
        self.position = position

    def again(self) -> FilterSyntaxError:
        """A copy to raise, without the traceback of the original."""
        return FilterSyntaxError(self.problem, position=self.position, hint=self.hint)
