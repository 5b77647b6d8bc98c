"""Extraction on a Slurm cluster, with submitit: a job for each model and task, each on as many devices as it is given.

Copy it, and change what your cluster wants to know. Jobs are an array; the processes of a job share its prompts and
write one run. A job that is preempted goes on by itself, any other that was stopped when the script is called again.

    pip install '.[extract]' submitit    # in the clone of Wirescope
    python slurm.py --model gpt2 gpt2-xl --task ioi greater-than --store circuits --nodes 2 --devices 8 --partition gpu
"""

import argparse
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import submitit


@dataclass(frozen=True)
class Extraction:
    """What each process of a job does."""

    model: str
    task: str
    store: Path
    levels: tuple[str, ...]
    limit: int | None

    def __call__(self) -> str:
        """Meet the job's other processes, extract, and return the name of the run."""
        from wirescope.extract import Settings, extract

        # says in the environment what torchrun would; each process then takes the device of its local rank
        submitit.helpers.TorchDistributedEnvironment().export(False, overwrite=True)
        settings = Settings(levels=self.levels)
        return extract(
            model=self.model, task=self.task, store=self.store, limit=self.limit, settings=settings
        ).run

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """When the job is preempted, or its time is up: the same again, which goes on from there."""
        return submitit.helpers.DelayedSubmission(self)


def main() -> None:
    """Submit the jobs, and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", nargs="+", required=True)
    parser.add_argument("--task", nargs="+", required=True)
    parser.add_argument("--store", type=Path, required=True, help="on a disk that all nodes see")
    parser.add_argument("--level", nargs="+", default=["edge"], choices=["edge", "head", "attention"])
    parser.add_argument("--limit", type=int, help="prompts of a task")
    parser.add_argument("--nodes", type=int, default=1, help="of a job")
    parser.add_argument("--devices", type=int, default=1, help="of a node: one process each")
    parser.add_argument("--hours", type=float, default=8)
    parser.add_argument("--partition")
    parser.add_argument(
        "--cluster", choices=["slurm", "local"], default="slurm", help="local: on this machine"
    )
    parser.add_argument("--logs", type=Path, default=Path("logs"))
    options = parser.parse_args()

    executor = submitit.AutoExecutor(folder=options.logs, cluster=options.cluster)
    executor.update_parameters(
        name="wirescope",
        nodes=options.nodes,
        tasks_per_node=options.devices,
        timeout_min=round(60 * options.hours),
        slurm_gpus_per_node=options.devices,
        slurm_cpus_per_task=8,
        slurm_srun_args=["--kill-on-bad-exit=1"],  # or the others would wait for a process that died
        **({"slurm_partition": options.partition} if options.partition else {}),
    )
    with executor.batch():  # an array
        jobs = [
            executor.submit(
                Extraction(model, task, options.store.resolve(), tuple(options.level), options.limit)
            )
            for model, task in product(options.model, options.task)
        ]
    for job in jobs:
        first, *others = job.results()
        print(f"{job.job_id}: {first}, by {1 + len(others)} processes", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
