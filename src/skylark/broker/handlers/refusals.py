"""What the handlers of sends and pulls add to their refusals."""

from __future__ import annotations

from typing import Final

#: What Java adds to remarks that its FAQ explains.
FAQ_HINT: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
