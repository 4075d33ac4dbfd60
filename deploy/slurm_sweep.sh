#!/usr/bin/env bash
# A study as a Slurm job array: each element trains its share of the study's searches.
#
#     sbatch --array=0-9 deploy/slurm_sweep.sh --config=configs/cifar10.py --study=factor --outdir=/shared/factor
#
# Submit from the root of the checkout, after `make demo` or `make .venv/.installed`. The checkout and
# --outdir are on a file system that all nodes see. The same command again resumes the study.
#
# Two minutes before its time is up, Slurm sends SIGTERM: the trials save themselves, sweep.py ends
# with exit code 75, and the element is queued again. Exit codes 2 (wrong input) and 4 (disk full,
# failed) end it.
#SBATCH --job-name=sweep
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:1
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=sweep-%A_%a.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?submit this file with sbatch --array=0-N}"
python=${PYTHON:-.venv/bin/python}
# Since Slurm 22.05, srun does not take it from the job, and may give a process one core.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
shard=$((${SLURM_ARRAY_TASK_ID:?submit this file with sbatch --array=0-N} - SLURM_ARRAY_TASK_MIN))
if ((SLURM_ARRAY_TASK_MAX - SLURM_ARRAY_TASK_MIN + 1 != SLURM_ARRAY_TASK_COUNT)); then
    echo "the array has gaps, so parts of the study would never run; submit with --array=0-N" >&2
    exit 2
fi

code=0
srun "$python" sweep.py "$@" --shard="$shard/$SLURM_ARRAY_TASK_COUNT" || code=$?
if ((code == 75)); then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
