#!/usr/bin/env bash
# One run on several hosts: a process per host, which share each batch.
#
#     sbatch --nodes=2 deploy/slurm_train.sh --config=configs/imagenet.py --workdir=/shared/imagenet
#
# Submit from the root of the checkout, after `make demo` or `make .venv/.installed`. The checkout and
# --workdir are on a file system that all nodes see; so are the data, or each node has a copy.
# docs/scaling.md says which fields may differ between devices and processes.
#
# Two minutes before its time is up, Slurm sends SIGTERM to all processes: the run saves itself, ends
# with exit code 75, and is queued again.
#SBATCH --job-name=train
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=train-%j.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?submit this file with sbatch}"
python=${PYTHON:-.venv/bin/python}
# Since Slurm 22.05, srun does not take it from the job, and may give a process one core.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

code=0
# Each process reads streams of its own. A larger number in the arguments replaces this one.
srun "$python" train.py --config.echo.streams="$SLURM_NTASKS" "$@" || code=$?
if ((code == 75)); then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
