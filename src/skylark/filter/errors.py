"""The one error of filters that a client gets to see: its expression does not compile."""

from __future__ import annotations

from skylark.core.errors import BrokerError


class FilterSyntaxError(BrokerError):
    """A subscription expression cannot be understood (SUBSCRIPTION_PARSE_FAILED).

    ``position`` is the index of the character at which it went wrong; None in what a broker says,
    which has words of its own for it.
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
        """A fresh copy to raise: one that was raised before carries its old traceback."""
        return FilterSyntaxError(self.problem, position=self.position, hint=self.hint)
