"""Which requests a broker of ours has answered, by its own metric ``rocketmq_rpc_latency``.

Needs the settings ``metricsExporterType=PROM`` and ``metricsPromExporterPort``.
"""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from typing import Final

from tests.interop.java import HOST

_SAMPLE: Final = re.compile(r"^rocketmq_rpc_latency_count\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


def answered_requests(metrics_port: int) -> Counter[str]:
    """The requests answered with success up to now, by the name of their code."""
    with urllib.request.urlopen(f"http://{HOST}:{metrics_port}/metrics") as answer:
        text = answer.read().decode()
    counts: Counter[str] = Counter()
    for labels, count in _SAMPLE.findall(text):
        shown = dict(_LABEL.findall(labels))
        if shown["response_code"] == "success":
            counts[shown["request_code"].upper()] += int(float(count))
    return counts
