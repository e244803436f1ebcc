"""The main function of benchmarks that run Java programs of ours beside Apache RocketMQ.

Such a benchmark is a list of rows and a function for each kind of row; rounds alternate as those of
:mod:`bench.compare` do, and its samples can be kept in a file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from bench.compare import ROUNDS, Run, add_warm_up_option, all_facts, measure_all, missed
from bench.compare_load.rows import Row, select
from bench.compare_load.session import Session, Timing
from bench.compare_load.summary import Result, Sample, format_noise, format_table, summarize
from bench.harness import BenchError, Ledger, compile_package, current_commit
from tests.interop.toolchain import check_tools, classpath, compiled

#: Measures one row in a session: figures, notes and void of a sample.
Measure = Callable[[Session, Row], dict[str, Any]]


@dataclass(frozen=True)
class BesideApache:
    """One benchmark."""

    name: str
    rows: Sequence[Row]
    measures: Mapping[str, Measure]  #: by the kind of a row
    program: str  #: our Java program
    seconds: float  #: of each measurement
    warm_up_s: float  #: before it
    rounds: int = ROUNDS

    def parse_arguments(self, arguments: Sequence[str]) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=f"bench.{self.name}")
        parser.add_argument("--rows", default="", help="comma-separated patterns of rows")
        parser.add_argument("--json", type=Path, help="append samples here and resume from it")
        parser.add_argument("--rounds", type=int, default=self.rounds)
        parser.add_argument(
            "--seconds", type=float, default=self.seconds, help="of each measurement"
        )
        parser.add_argument(
            "--warm-up", type=float, default=self.warm_up_s, help="seconds before it"
        )
        add_warm_up_option(parser)
        options = parser.parse_args(arguments)
        if options.rounds < 1 or options.seconds <= 0 or options.warm_up < 0:
            raise BenchError("--rounds and --seconds must be positive")
        return options

    def measure(self, session: Session, row: Row, number: int) -> Sample:
        found = self.measures[row.kind](session, row)
        return Sample(row=row.name, system=session.system.name, round=number, **found)

    def run(self, arguments: Sequence[str], *, stdout: TextIO) -> bool:
        """Measure and print; whether no goal is missed."""
        options = self.parse_arguments(arguments)
        chosen = select(self.rows, options.rows)
        check_tools()
        stdout.write("the jars and our programs, once, into build/interop\n")
        classpath()
        for program in ("Leashed", self.program):
            compiled(program)
        compile_package()
        facts = all_facts()
        stdout.write(f"{facts['cpu']}, {facts['cores']} cores, {facts['python']}\n")
        ran = Run(
            Timing(options.seconds, options.warm_up, warm_up_messages=options.warm_up_messages),
            facts,
            current_commit(Path(__file__).parent),
            Ledger(options.json) if options.json else None,
            bench=self.name,
            measure=self.measure,
        )
        measure_all(ran, chosen, options.rounds, stdout)
        counted = [sample for sample in ran.samples if sample.round < options.rounds]
        results = [result for row in chosen for result in summarize(row, counted)]
        stdout.write(f"\n{format_table(results)}\n\n{format_noise(results)}\n")
        return self.judge(results, stdout)

    def judge(self, results: Sequence[Result], stdout: TextIO) -> bool:
        """Whether no goal is missed; may print more."""
        del stdout
        return not missed(results)
