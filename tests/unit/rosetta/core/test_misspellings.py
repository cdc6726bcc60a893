"""Warnings of misspelt variables: what is one edit away, and what is not warned about."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from rosetta.core.variables import lookup, misspellings, readers

# The names in the environment of a job on a cluster: Slurm, Lmod, conda, pyxis, a container for
# GPUs, MPI, a login shell, systemd and continuous integration.
ORDINARY = """
CUDA_VERSION CUDA_HOME CUDA_PATH CUDA_ROOT CUDA_DEVICE_ORDER CUDA_CACHE_PATH CUDNN_VERSION
CUDA_MODULE_LOADING CUDA_LAUNCH_BLOCKING CUDA_VISIBLE_DEVICES CUDA_MPS_PIPE_DIRECTORY CUDA_DRIVER
NVIDIA_VISIBLE_DEVICES NVIDIA_REQUIRE_CUDA NVIDIA_PRODUCT_NAME NVIDIA_BUILD_ID NVJITLINK_VERSION
NCCL_VERSION NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_IB_TIMEOUT NCCL_ALGO
NCCL_SOCKET_IFNAME NCCL_SOCKET_NTHREADS NCCL_P2P_LEVEL NCCL_NET_GDR_LEVEL NCCL_TOPO_FILE NCCL_PROTO
NCCL_CROSS_NIC NCCL_NVLS_ENABLE NVTE_FRAMEWORK NVTE_FLASH_ATTN NVTE_FUSED_ATTN_BACKEND NVTE_DEBUG
JAX_PLATFORM_NAME JAX_ENABLE_X64 JAX_TRACEBACK_FILTERING JAX_ENABLE_PGLE
XLA_PYTHON_CLIENT_PREALLOCATE XLA_PYTHON_CLIENT_ALLOCATOR TF_CPP_MIN_LOG_LEVEL
TF_FORCE_GPU_ALLOW_GROWTH TFDS_DATA_DIR SLURM_JOBID SLURM_JOB_ID SLURM_JOB_NAME SLURM_JOB_USER
SLURM_JOB_UID SLURM_JOB_GID SLURM_JOB_QOS SLURM_JOB_ACCOUNT SLURM_JOB_PARTITION SLURM_JOB_NODELIST
SLURM_JOB_CPUS_PER_NODE SLURM_JOB_END_TIME SLURM_JOB_NUM_NODES SLURM_JOB_GPUS SLURM_NODELIST
SLURM_NNODES SLURM_NPROCS SLURM_NTASKS SLURM_NODEID SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE
SLURM_TASK_PID SLURM_PROCID SLURM_LOCALID SLURM_GTIDS SLURM_STEPID SLURM_STEP_ID SLURM_STEP_NODELIST
SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS SLURM_UMASK SLURM_STEP_TASKS_PER_NODE
SLURM_STEP_LAUNCHER_PORT SLURM_SRUN_COMM_HOST SLURM_SRUN_COMM_PORT SLURM_CLUSTER_NAME SLURM_CONF
SLURM_CPU_BIND SLURM_CPU_BIND_LIST SLURM_CPU_BIND_TYPE SLURM_CPUS_ON_NODE SLURM_CPU_BIND_VERBOSE
SLURM_DISTRIBUTION SLURM_GPUS SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK
SLURM_LAUNCH_NODE_IPADDR SLURM_MEM_PER_NODE SLURM_PRIO_PROCESS SLURM_RLIMIT_CORE SLURM_SUBMIT_DIR
SLURM_SUBMIT_HOST SLURM_TOPOLOGY_ADDR SLURM_TOPOLOGY_ADDR_PATTERN SLURM_WORKING_CLUSTER
SLURMD_NODENAME SLURMD_DEBUG SLURM_RESTART_COUNT SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_HINT
SBATCH_ACCOUNT SRUN_DEBUG SQUEUE_FORMAT PYXIS_ROOTFS ENROOT_ROOTFS ENROOT_CACHE_PATH
SINGULARITY_NAME APPTAINER_NAME APPTAINER_CONTAINER OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE
OMPI_MCA_btl PMIX_RANK PMI_RANK PMI_SIZE PMIX_NAMESPACE I_MPI_HYDRA_BOOTSTRAP UCX_TLS
UCX_NET_DEVICES FI_PROVIDER OPAL_PREFIX MODULEPATH MODULESHOME MODULEPATH_ROOT MODULES_CMD LMOD_CMD
LMOD_DIR LMOD_PKG LMOD_VERSION LMOD_ROOT LMOD_SYSTEM_NAME LMOD_sys LOADEDMODULES _LMFILES_
__LMOD_REF_COUNT_PATH _ModuleTable001_ _ModuleTable_Sz_ BASH_ENV BASH_FUNC_module%% EBROOTPYTHON
EBVERSIONPYTHON CONDA_PREFIX CONDA_PREFIX_1 CONDA_EXE CONDA_SHLVL CONDA_DEFAULT_ENV
CONDA_PROMPT_MODIFIER CONDA_PYTHON_EXE _CE_CONDA _CE_M MAMBA_EXE MAMBA_ROOT_PREFIX VIRTUAL_ENV
VIRTUAL_ENV_PROMPT PYTHONPATH PYTHONHOME PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHONNOUSERSITE
PYTHONHASHSEED PYTHONIOENCODING PYTHON3 PYTHON_VERSION PYTHON_ROOT PIP_INDEX_URL PIP_CACHE_DIR
UV_CACHE_DIR PATH HOME USER LOGNAME SHELL PWD OLDPWD TERM LANG LANGUAGE LC_ALL LC_CTYPE LC_TIME TZ
TMPDIR TMP TEMP LESS LESSOPEN LESSCLOSE PAGER MANPAGER MANPATH INFOPATH EDITOR VISUAL HISTSIZE
HISTFILE HISTCONTROL HISTFILESIZE MAIL MAILCHECK HOSTNAME HOSTTYPE HOST DISPLAY COLUMNS LINES
LS_COLORS LD_LIBRARY_PATH LD_PRELOAD LIBRARY_PATH CPATH PKG_CONFIG_PATH CMAKE_PREFIX_PATH
ACLOCAL_PATH XDG_SESSION_ID XDG_DATA_DIRS XDG_RUNTIME_DIR XDG_CONFIG_DIRS XDG_DATA_HOME
DBUS_SESSION_BUS_ADDRESS SSH_CLIENT SSH_CONNECTION SSH_TTY SSH_AUTH_SOCK SUDO_USER WHICH_DECLARE
KDEDIRS QTDIR QTINC QTLIB S_COLORS SELINUX_ROLE_REQUESTED SHLVL _ http_proxy https_proxy no_proxy
HTTP_PROXY HTTPS_PROXY NO_PROXY FTP_PROXY ALL_PROXY OMP_NUM_THREADS MKL_NUM_THREADS
OPENBLAS_NUM_THREADS KMP_AFFINITY GOMP_CPU_AFFINITY MALLOC_ARENA_MAX TOKENIZERS_PARALLELISM HF_HOME
HF_TOKEN HF_DATASETS_CACHE TRANSFORMERS_CACHE WANDB_API_KEY WANDB_MODE WANDB_DIR WANDB_ENTITY
MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK NODE_RANK KUBERNETES_SERVICE_HOST KUBERNETES_PORT
KUBECONFIG NOTIFY_SOCKET WATCHDOG_USEC WATCHDOG_PID INVOCATION_ID JOURNAL_STREAM CI GITHUB_ACTIONS
RUNNER_OS GITHUB_WORKSPACE BUILD_ID BUILD_NUMBER JOB_NAME JOB_ID WORKSPACE DEBIAN_FRONTEND
CONTAINER_NAME IMAGE_NAME DATA_DIR DATASET DATASETS MODEL MODELS MODEL_NAME MODEL_PATH CONFIG_FILE
CONFIG_PATH LOG_LEVEL OUTPUT OUTPUTS CHECKPOINT CHECKPOINT_DIR BATCH_SIZE NUM_NODES NUM_WORKERS
SCRATCH WORK PROJECT STORE NUM_CPUS NUM_TPUS
"""


@pytest.mark.parametrize("reader", readers.RUNS)
def test_an_ordinary_environment_has_no_misspelt_variable(reader: str) -> None:
    names = ORDINARY.split()
    assert len(names) > 300
    variables = (*lookup.list_variables(readers.ROSETTA), *lookup.list_variables(reader))
    environment = dict.fromkeys(names, "1")
    assert list(misspellings.find_unknown_variables(environment, variables)) == []


@pytest.mark.parametrize("reader", readers.RUNS)
def test_the_table_has_no_misspelt_variable(reader: str) -> None:
    """Pax's LOG_DIR is one letter from LOGDIR, and correct."""
    environment = {variable.name: "1" for variable in lookup.TABLE}
    assert (
        list(misspellings.find_unknown_variables(environment, lookup.list_variables(reader))) == []
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TRIAN_STEPS", "TRAIN_STEPS"),  # two letters swapped
        ("TRAIN_STEP", "TRAIN_STEPS"),  # one is missing
        ("TRAIN__STEPS", "TRAIN_STEPS"),  # one is too many
        ("TRAIN-STEPS", None),  # no shell can set it by an assignment
        ("TRAIN_STEPZ", "TRAIN_STEPS"),
        ("RTAIN_STEPS", "TRAIN_STEPS"),
        ("TRIAN_STEP", None),  # two edits
        ("train_steps", None),
        ("MODELDIR", "MODEL_DIR"),
        ("XLA_FLAG", "XLA_FLAGS"),
        ("JAX_PLATFORM", "JAX_PLATFORMS"),
        ("ROSETTA_PREST", "ROSETTA_PRESET"),
        ("ROSETTA_DEBUGG", "ROSETTA_DEBUG"),  # every command reads it
        ("PCAK", None),  # PACK, but so short
        ("PACKS", None),
        ("VOCBA", "VOCAB"),
        ("SLURM_NTASK", None),  # of another program
        ("PYTHON3", None),
        ("LOG_DIR", None),  # of Pax
        ("NUM_GPU", "NUM_GPUS"),
        ("NUM_CPUS", None),
        ("GRAD_ACCUM", "NUM_MICROBATCHES"),  # the script's word
        ("SIZE", "T5_SIZE"),
        ("grad_accum", None),
        ("ROSETTA_WORKERS", "ROSETTA_DATA_WORKERS"),
        ("ROSETTA_HOME2", "ROSETTA_HOME"),
        ("ROSETTA_FROBNICATE", ""),
        ("ROSETTA_", ""),
        ("ROSETTA_CACHE", None),  # of the builder
    ],
)
def test_find_unknown_variables(name: str, meant: str | None) -> None:
    variables = (
        *lookup.list_variables(readers.ROSETTA),
        *lookup.list_variables(readers.T5X_PRETRAIN),
    )
    pairs = list(misspellings.find_unknown_variables({name: "1"}, variables))
    assert pairs == ([] if meant is None else [(name, meant)])


def test_other_names_of_scripts_only_count_for_commands_that_read_them() -> None:
    """NUM_MICROBATCHES of Pax is no word of a script."""
    environment = {"GRAD_ACCUM": "2", "SIZE": "small"}
    variables = lookup.list_variables(readers.PAX_PILE)
    assert "NUM_MICROBATCHES" in {variable.name for variable in variables}
    assert list(misspellings.find_unknown_variables(environment, variables)) == []


def test_programs_of_rosetta_set_no_unknown_variable() -> None:
    """What one of them sets for another must not bring a warning."""
    root = Path(__file__).resolve().parents[4]
    sources = [path for folder in ("rosetta", "builder") for path in (root / folder).rglob("*.py")]
    texts = (path.read_text(encoding="utf-8") for path in sources)
    names = {name for text in texts for name in re.findall(r"\bROSETTA_[A-Z0-9_]*[A-Z0-9]", text)}
    assert len(names) > 20
    assert {name for name in names if not lookup.is_known_variable(name)} == set()


@pytest.mark.parametrize("program", ["explain", "run", "submit", "tune"])
def test_a_suggestion_is_a_variable_that_the_command_reads(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The preset of these commands is on their command line."""
    misspellings.warn_of_unknown_variables(
        {"ROSETTA_PRESETS": "x", "NUM_GPU": "2"}, "it", program, "t5x"
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "warning: ROSETTA_PRESETS is not a variable of it; see docs/reference/variables.md"
    )


def edits(word: str) -> set[str]:
    """Return all words that one edit makes of a word, with few letters."""
    places = range(len(word) + 1)
    halves = [(word[:place], word[place:]) for place in places]
    letters = "ab"
    deleted = {left + right[1:] for left, right in halves if right}
    swapped = {left + right[1] + right[0] + right[2:] for left, right in halves if len(right) > 1}
    replaced = {left + letter + right[1:] for left, right in halves if right for letter in letters}
    inserted = {left + letter + right for left, right in halves for letter in letters}
    return (deleted | swapped | replaced | inserted) - {word}


def test_is_one_edit_apart_agrees_with_the_list_of_all_edits() -> None:
    """Compare it with the definition, on all pairs of short words of two letters."""
    words = ["".join(word) for size in range(6) for word in itertools.product("ab", repeat=size)]
    for word in words:
        near = edits(word)
        assert {
            other for other in words if misspellings.is_one_edit_apart(word, other)
        } == near & set(words)


def test_a_run_of_a_preset_warns_of_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """What `rosetta run` passes on counts as its own."""
    environment = {"BSIZE_PER_GPUS": "1", "CONTAINR": "x", "MAX_STEP": "1"}
    misspellings.warn_of_unknown_variables(environment, "rosetta run", "run", "t5x")
    lines = capsys.readouterr().err.splitlines()
    assert [(line.split()[:2], line.split()[-1]) for line in lines] == [
        (["warning:", "BSIZE_PER_GPUS"], "BSIZE_PER_GPU?"),
        (["warning:", "CONTAINR"], "CONTAINER?"),
    ]
    assert all(" rosetta run;" in line for line in lines)
    misspellings.warn_of_unknown_variables(
        {**environment, "SLURM_PROCID": "3"}, "rosetta run", "run", "t5x"
    )
    misspellings.warn_of_unknown_variables(
        {**environment, "JAX_PROCESS_ID": "3"}, "rosetta run", "run", "t5x"
    )
    assert capsys.readouterr().err == ""
