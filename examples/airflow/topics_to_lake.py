"""Airflow: every hour archive topics, then compare the archive with the topics.

Put this file into the folder of your DAGs. The connection's address is the Airflow variable
``skylark_namesrv``, the folder of the lake is ``lake_folder``. Airflow pins the versions of many
packages, so install ``skylark-mq[spark]`` in an environment of its own and give the path of its
command as the variable ``skylark_command``.

Archiving is exactly once, so a task that failed or was ended may run again at any time.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.exceptions import AirflowException, AirflowFailException
from airflow.sdk import DAG, BaseOperator

TOPICS = ["orders", "payments"]
USAGE_ERROR, NOT_FOUND = 2, 4


class SkylarkOperator(BaseOperator):
    """Runs a ``skylark`` command; what it prints as JSON is the result of the task."""

    template_fields: Sequence[str] = ("arguments", "namesrv", "command")

    def __init__(
        self,
        *,
        arguments: Sequence[str],
        namesrv: str = "{{ var.value.get('skylark_namesrv', '127.0.0.1:9876') }}",
        command: str = "{{ var.value.get('skylark_command', 'skylark') }}",
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.arguments = list(arguments)
        self.namesrv = namesrv
        self.command = command
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Any) -> Any:
        words = [self.command, "--output", "json", *self.arguments, "--namesrv", self.namesrv]
        self.log.info("running %s", " ".join(words))
        self._process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        printed, notes = self._process.communicate()
        self.log.info("%s", notes)
        if code := self._process.returncode:
            problem = notes.strip().rpartition("\n")[2]
            # A retry does not mend a wrong command line or a missing topic.
            is_final = code in (USAGE_ERROR, NOT_FOUND)
            raise (AirflowFailException if is_final else AirflowException)(problem)
        return json.loads(printed)

    def on_kill(self) -> None:
        """End the job after its current batch."""
        if self._process is not None:
            self._process.terminate()


with DAG(
    "topics_to_lake",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    schedule="@hourly",
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
) as dag:
    folder = "{{ var.value.get('lake_folder', '/data/lake') }}"
    for topic in TOPICS:
        archive = SkylarkOperator(
            task_id=f"archive_{topic}",
            arguments=["job", "archive", topic, "--to", f"{folder}/{topic}"],
        )
        verify = SkylarkOperator(
            task_id=f"verify_{topic}",
            arguments=["job", "verify", topic, "--lake", f"{folder}/{topic}", "--archived-only"],
        )
        archive >> verify
