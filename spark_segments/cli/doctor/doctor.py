"""`segments doctor`."""

from __future__ import annotations

from dataclasses import asdict

import typer

from spark_segments.cli.command_options import OUTPUT, STORAGE, argument, option, with_options
from spark_segments.cli.doctor.environment import FAILED, environment, spark_workers
from spark_segments.cli.doctor.paths import Item, path_of
from spark_segments.cli.output import FOUND_FAULTS, Output, print_json, print_text
from spark_segments.config import parse_overrides


@with_options
def doctor(
    log_dir: str | None = argument("LOG_DIR", "A log directory, or where one is to be made.", default=None),
    master: str | None = option("Start Spark there and ask its workers as well.", metavar="URL"),
    path: Item | None = option(
        "Only print where something lies: the script for spark-submit, Spark's settings, the example DAG, or "
        "a JAVA_HOME that Spark runs with."
    ),
    output: Output = OUTPUT,
    storage: list[str] | None = STORAGE,
) -> None:
    """Checks what usually goes wrong and says what to do: versions, kernels, Java, Spark's Pythons, the store.

    With LOG_DIR it writes to the store, and deletes what it wrote: two files
    of one name, of which a store must refuse one, and a file that shows the
    store's clock. With --master it starts Spark and asks the Pythons of its
    workers.

    --path java prints the JAVA_HOME of the machine, or of the JDK of the extra
    `jdk`: Spark sessions of your own and spark-submit find Java by
    export JAVA_HOME=$(segments doctor --path java). --path job prints the
    script that spark-submit takes, which has the commands of this program.

    Exit codes: 0 all is well or a warning was given, 3 a check failed.

    Example: segments doctor /data/log
    Example: segments doctor s3://bucket/log --master 'local[2]' --output json
    Example: spark-submit "$(segments doctor --path job)" compact /data/log
    """
    if path is not None:
        print(path_of(path))
        return
    findings = list(environment())
    if master is not None:
        findings += spark_workers(master)
    if log_dir is not None:
        from spark_segments.cli.doctor.store import store
        from spark_segments.storage import Storage

        findings += store(Storage(log_dir, parse_overrides(storage or [])))
    failed = any(finding.status == FAILED for finding in findings)
    if output is Output.JSON:
        print_json({"ok": not failed, "checks": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            print_text(f"{finding.status:7}  {finding.check}: {finding.found}")
            if finding.hint is not None:
                print_text(f"{'':7}  → {finding.hint}")
    if failed:
        raise typer.Exit(FOUND_FAULTS)
