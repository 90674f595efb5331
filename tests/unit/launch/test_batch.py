"""What a job asks for, and the script, run by bash with stand-ins for Slurm's programs."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcrl.config import ConfigError, SiteConfig
from hpcrl.launch.batch import Wishes, plan_job, render
from hpcrl.launch.script import END, FORWARD, THREADS

TOP = Path(__file__).parents[3]
CARTPOLE = f"{TOP}/jobs/cartpole.py"
IMPALA, PPO = f"{CARTPOLE}:impala", f"{CARTPOLE}:ppo"


def script(recipe=IMPALA, overrides=(), site=None, folder=Path("/home/me"), **wishes):
    site = SiteConfig.parse(site or {})
    return render(plan_job(recipe, overrides, "here", site, Wishes(**wishes), folder))


def options(text):
    """The #SBATCH lines of each component."""
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    components = [[]]
    for line in lines:
        if line == "hetjob":
            components.append([])
        else:
            components[-1].append(line)
    return components


def test_what_a_profile_asks_for_is_in_the_script():
    site = {
        "partition": "cpu",
        "account": "p123",
        "qos": "long",
        "sbatch": ["--mem-per-cpu=2G", "--constraint=icelake"],
        "cpus_per_rank": 4,
        "modules": ["gcc/13", "python/3.11"],
        "setup": ["source $HOME/v/bin/activate"],
        "environment": {"UCX_TLS": "tcp,$MORE", "ODD": 'a "b" `c`'},
        "command": "python -m hpcrl",
        "mpi": "pmix",
        "launcher_options": ["--cpu-bind=cores"],
        "signal": "USR2",
        "signal_lead_s": 90,
        "scratch": "/scratch/$USER",
        "hdf5_locking": False,
        "max_attempts": 3,
    }
    text = script(site=site, time="1-2", nodes=2, num_ranks=6)
    (asked,) = options(text)
    assert {
        "--partition=cpu",
        "--account=p123",
        "--qos=long",
        "--mem-per-cpu=2G",
        "--constraint=icelake",
        "--cpus-per-task=4",
        "--nodes=2",
        "--ntasks=6",
        "--ntasks-per-node=3",
        "--time=1-02:00:00",
        "--signal=USR2@90",
        "--job-name=cartpole-impala",
        '--chdir="/home/me"',
        "--output=cartpole-impala-%j.log",
        "--open-mode=append",
    } <= set(asked)
    lines = text.splitlines()
    expected = [
        "module purge",
        "module load gcc/13 python/3.11",
        "source $HOME/v/bin/activate",
        'export UCX_TLS="tcp,$MORE"',
        'export ODD="a \\"b\\" \\`c\\`"',
        'export TMPDIR="/scratch/$USER"',
        "export HDF5_USE_FILE_LOCKING=FALSE",
    ]
    start = lines.index("module purge")
    assert lines[start : start + len(expected)] == expected
    assert 'srun --mpi=pmix --kill-on-bad-exit=1 --cpu-bind=cores "${RUN[@]}"' in lines
    assert any(line.startswith("RUN=(python -m hpcrl run ") for line in lines)
    assert "MAX_ATTEMPTS=3" in lines
    assert "1 day 2 hours" in lines[1] and "6 ranks" in lines[1] and "2 nodes" in lines[1]


def test_modules_may_use_variables_that_are_not_set(start):
    """As those of Lmod and conda do."""
    code, calls, _ = start(script(site={"setup": ["echo $NEVER_SET"]}))
    assert code == 0 and calls[0] == "srun"


def test_a_profile_that_asks_for_nothing():
    (asked,) = options(script())
    assert not any(line.startswith(("--partition", "--account", "--qos", "--array")) for line in asked)
    assert "module" not in script().partition("--- run")[0].replace("modules", "")
    assert "--mpi" not in script(site={"mpi": None})


def test_of_ranks_that_mpiexec_started_the_script_gets_the_signal_and_passes_it_on():
    text = script(site={"launcher": "mpiexec", "signal": "USR2"})
    assert "--signal=B:USR2@120" in options(text)[0]
    assert FORWARD.format(signal="USR2") in text and "\nsrun " not in text


def test_components_of_a_heterogeneous_job():
    site = {
        "partition": "cpu",
        "cpus_per_rank": 2,
        "learners": {"partition": "gpu", "cpus_per_rank": 8, "sbatch": ["--gres=gpu:1"]},
    }
    overrides = ["ranks.learners=2", "ranks.actors=6"]
    text = script(site=site, overrides=overrides, heterogeneous=True, nodes=3)
    learners, actors = options(text)
    assert {"--partition=gpu", "--nodes=1", "--ntasks=3", "--cpus-per-task=8", "--gres=gpu:1"} <= set(
        learners
    )
    assert {"--partition=cpu", "--nodes=3", "--ntasks=6", "--ntasks-per-node=2", "--cpus-per-task=2"} <= set(
        actors
    )
    assert "--gres=gpu:1" not in actors
    for both in ("--time=0-01:00:00", "--signal=USR1@120"):
        assert both in learners and both in actors
    assert not any(line.startswith(("--job-name", "--output", "--chdir")) for line in actors)
    assert '--het-group=0 --cpus-per-task=8 env OMP_NUM_THREADS=8 "${RUN[@]}" : \\\n' in text
    assert '--het-group=1 --cpus-per-task=2 env OMP_NUM_THREADS=2 "${RUN[@]}"\n' in text


@pytest.mark.parametrize(
    ("how", "part"),
    [
        ({"nodes": 4}, "4 nodes for 3 ranks"),
        ({"nodes": 0}, "--nodes 0"),
        ({"time": "2"}, "2 minutes is over before the signal"),
        ({"time": "soon"}, "time limit 'soon'"),
        ({"seeds": "0..4"}, "--seeds '0..4'"),
        ({"seeds": "0-4", "overrides": ["seed=3"]}, "seed is set and swept"),
        ({"seeds": "0-4", "sweep": ("seed=1",)}, "contradict"),
        ({"sweep": ("algorithm.gamma=0.9,2",)}, "with algorithm.gamma=2: algorithm.gamma=2"),
        ({"sweep": ("algorithm.gamma=0.9",), "heterogeneous": True}, "no arrays of heterogeneous jobs"),
        ({"sweep": ("algorithm.gamma=0.9",), "at_once": 0}, "--at-once 0: use 1 or more"),
        ({"seeds": "0-4%0"}, "--seeds ...%0: use 1 or more"),
        ({"at_once": 2}, "--at-once 2: use 1 or more, with --sweep or --seeds"),
        ({"seeds": "0-4%2", "at_once": 2}, "--at-once 2 and --seeds ...%2 contradict"),
        ({"seeds": "0-4", "overrides": ["storage.run_dir=x"]}, "one directory for all runs"),
        ({"seeds": "0-4", "heterogeneous": True}, "no arrays of heterogeneous jobs"),
        ({"recipe": PPO, "heterogeneous": True}, "one kind of rank"),
        ({"num_ranks": 1, "heterogeneous": True}, "one kind of rank"),
        ({"heterogeneous": True, "site": {"launcher": "mpiexec"}}, "launcher = 'srun'"),
        (
            {"heterogeneous": True, "site": {"learners": {"nodes": 3}}},
            "3 nodes for 2 ranks (1 replay, 1 learner)",
        ),
        ({"overrides": ["env.num_env=3"]}, "did you mean num_envs"),
        ({"num_ranks": 2}, "2 ranks are too few"),
    ],
)
def test_what_does_not_fit_is_refused(how, part):
    with pytest.raises(ConfigError) as error:
        script(**how)
    assert part in str(error.value)


@pytest.fixture
def start(tmp_path):
    """Run a script in bash: what srun, squeue and scontrol are called with, and how it ends."""

    def run(text, *, code=0, state="RUNNING", scontrol=0, **environment):
        programs = {
            "srun": f"exit {code}",
            "hpcrl": f"exit {code}",
            "squeue": f"echo {state}",
            "scontrol": f"exit {scontrol}",
        }
        (tmp_path / "calls").write_text("")
        for name, end in programs.items():
            path = tmp_path / name
            path.write_text(f'#!/bin/sh\nprintf "%s\\n" "{name}" "$@" >> {tmp_path}/calls\n{end}\n')
            path.chmod(0o755)
        (tmp_path / "script").write_text(text)
        outside = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMP_"))
        }
        done = subprocess.run(
            ["bash", str(tmp_path / "script")],
            env={**outside, "PATH": f"{tmp_path}:{outside['PATH']}", "SLURM_JOB_ID": "7", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        return done.returncode, (tmp_path / "calls").read_text().splitlines(), done.stdout

    return run


@pytest.mark.parametrize("launcher", ["srun", "mpiexec"])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, 0),
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
        (75, 75),
        (127, 2),
        (137, 3),
        (138, 75),
        (139, 3),
        (140, 75),
        (143, 3),
        (9, 3),
    ],
)
def test_the_exit_code_is_hpcrls(start, launcher, code, expected):
    returned, calls, said = start(script(site={"launcher": launcher}), code=code)
    assert returned == expected
    assert calls[0] == ("srun" if launcher == "srun" else "hpcrl")
    assert ("requeueing" in said) == ("scontrol" in calls) == (expected == 75)


def test_every_argument_arrives_as_it_was(start):
    overrides = ['env.kwargs={"a b": "$HOME"}', "name=x"]
    _, calls, _ = start(script(overrides=overrides, num_ranks=4))
    run = calls[calls.index("run") :]
    assert run == [
        *("run", IMPALA, "--set", overrides[0], "--set", "name=x", "--ranks", "4"),
        *("--resume", "if-exists", "--set", "storage.run_dir=runs/x-0-7"),
    ]


def test_each_seed_has_a_directory(start):
    text = script(seeds="3-5%2", overrides=["storage.runs_dir=/data/my runs"])
    assert "--array=0-2%2" in options(text)[0] and "--output=cartpole-impala-%A_%a.log" in options(text)[0]
    _, calls, _ = start(text, SLURM_ARRAY_TASK_ID="1", SLURM_ARRAY_JOB_ID="7")
    assert calls[-4:] == ["--set", "seed=4", "--set", "storage.run_dir=/data/my runs/cartpole-impala-4-7"]


def test_each_task_of_a_sweep_has_its_own_settings_and_directory(start):
    """What the table in the script says is what srun is called with, also after a requeue and in a chain."""
    site, folder, odd = SiteConfig.parse({}), Path("/home/me"), 'env.kwargs={"a b": "$HOME"}'
    wishes = Wishes(sweep=(odd, "algorithm.gamma=0.9,0.99"), seeds="4-5", at_once=2)
    job = plan_job(IMPALA, ["name=x"], "here", site, wishes, folder)
    assert "--array=0-3%2" in options(render(job))[0]
    assert "4 runs over env.kwargs x algorithm.gamma x seed, 2 at a time" in render(job)
    for task, (gamma, seed) in enumerate([("0.9", 4), ("0.9", 5), ("0.99", 4), ("0.99", 5)]):
        told = [
            *("run", IMPALA, "--set", "name=x", "--resume", "if-exists", "--set", odd),
            *("--set", f"algorithm.gamma={gamma}", "--set", f"seed={seed}"),
            *("--set", f"storage.run_dir=runs/x-kwargs=a_b_HOME,gamma={gamma}-{seed}-7"),
        ]
        variables = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": "7"}
        later = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": "9"}
        for text, environment in (
            (render(job), variables),
            (render(job), variables | {"SLURM_RESTART_COUNT": "1"}),
            (render(replace(job, first="7", previous="8")), later),
        ):
            _, calls, _ = start(text, **environment)
            assert calls[calls.index("run") :] == told


def test_a_task_that_is_none_of_the_sweep_starts_nothing(start, tmp_path):
    with pytest.raises(AssertionError, match=r"array task 3 is not one of these$"):
        start(script(seeds="3-5"), SLURM_ARRAY_TASK_ID="3", SLURM_ARRAY_JOB_ID="7")
    assert (tmp_path / "calls").read_text() == ""


def test_ranks_of_a_sweep_may_differ_in_role():
    text = script(sweep=("ranks.learners=1,2",), num_ranks=5, overrides=["ranks.replay=1"])
    assert "--ntasks=5" in options(text)[0]
    assert "(3 actors, 1 replay, 1 learner or 2 actors, 1 replay, 2 learners)" in text


def test_a_directory_that_is_named_is_kept(start):
    _, calls, _ = start(script(overrides=["storage.run_dir=my run"]))
    assert calls[-1] == "storage.run_dir=my run"


class TestRequeue:
    """P19: exactly once after a clean stop, and never after anything else."""

    def test_once_after_a_clean_stop(self, start):
        code, calls, said = start(script(), code=75)
        assert code == 75
        assert calls.count("scontrol") == 1 and calls[-3:] == ["scontrol", "requeue", "7"]
        assert "requeueing job 7 after attempt 1 of at most 10" in said
        assert "--resume if-exists" in " ".join(calls)
        assert "--requeue" in options(script())[0]

    @pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 137])
    def test_never_after_anything_else(self, start, code):
        assert "scontrol" not in start(script(), code=code)[1]

    def test_the_last_attempt(self, start):
        text = script(site={"max_attempts": 3})
        assert "scontrol" in start(text, code=75, SLURM_RESTART_COUNT="1")[1]
        _, calls, said = start(text, code=75, SLURM_RESTART_COUNT="2")
        assert "scontrol" not in calls and "not requeued: this was attempt 3 of at most 3" in said

    def test_where_the_site_does_not_allow_it(self, start):
        text = script(site={"requeue": False})
        _, calls, said = start(text, code=75)
        assert "scontrol" not in calls and "not requeued: the site profile has requeue = false" in said
        assert "--no-requeue" in options(text)[0]

    @pytest.mark.parametrize("state", ["COMPLETING", "PENDING", "CANCELLED", ""])
    def test_a_job_that_slurm_is_ending_or_has_requeued_itself(self, start, state):
        _, calls, said = start(script(), code=75, state=state)
        assert "scontrol" not in calls and f"the job is {state or 'gone'} already" in said

    def test_a_refusal_is_told(self, start):
        code, _, said = start(script(), code=75, scontrol=1)
        assert code == 75 and "not requeued: scontrol refused" in said

    def test_of_an_array_only_the_one_that_stopped(self, start):
        variables = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
        assert start(script(seeds="3-5"), code=75, **variables)[1][-1] == "7_2"


@pytest.mark.parametrize(
    ("seeds", "run_dir", "log"),
    [(None, "runs/x-0-7", "x-7.log"), ("3-5", "runs/x-4-7", "x-7_%a.log")],
)
def test_the_later_jobs_of_a_chain(seeds, run_dir, log):
    """They go on in the directory and the log of the first, after the one before, however that has ended."""
    site, folder = SiteConfig.parse({}), Path("/home/me")
    job = plan_job(IMPALA, ["name=x"], "here", site, Wishes(seeds=seeds), folder)
    assert not any(option.startswith("--dependency") for option in options(render(job))[0])
    later = render(replace(job, first="7", previous="8"))
    assert {"--dependency=afterany:8", f"--output={log}"} <= set(options(later)[0])
    assert f"RUN_DIR={run_dir}" in later and "--resume if-exists" in later


def test_a_chain_is_sent_job_by_job(tmp_path):
    """Each names the one before; where one is refused, what was sent before is told."""
    command = tmp_path / "sbatch"
    command.write_text(
        f"#!/bin/sh\ncd {tmp_path}\ncat > script\necho x >> sent\nn=$(wc -l < sent)\n"
        "grep dependency script >> after\n[ $n -lt 4 ] || { echo full >&2; exit 1; }\necho $((n + 10))\n"
    )
    command.chmod(0o755)
    environ = os.environ | {"PYTHONPATH": str(TOP), "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def submit(chain, *more):
        (tmp_path / "sent").write_text("")
        (tmp_path / "after").write_text("")
        arguments = [
            sys.executable,
            "-m",
            "hpcrl",
            "submit",
            IMPALA,
            "--site",
            "testcluster",
            "--chain",
            chain,
            *more,
        ]
        done = subprocess.run(
            arguments, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr, (tmp_path / "after").read_text().splitlines()

    code, said, errors, after = submit("3")
    assert (code, errors) == (0, "")
    assert after == [f"#SBATCH --dependency=afterany:{number}" for number in (11, 12)]
    assert said.startswith("job 11: ") and "then 12, 13: " in said and "scancel 11 12 13\n" in said
    code, said, errors, _ = submit("4")
    assert (code, said) == (2, "") and "refused the job: full; scancel 11 12 13 takes back" in errors
    assert submit("0")[0] == 2
    code, said, errors, _ = submit("1", "--seeds", "4,9")
    assert (code, errors) == (0, "")
    assert [line.rpartition("/")[2] for line in said.splitlines()[1:]] == [
        "cartpole-impala-11_0.log",
        "cartpole-impala-4-11",
        "cartpole-impala-11_1.log",
        "cartpole-impala-9-11",
    ]


def test_the_script_to_edit_by_hand_does_the_same():
    text = (TOP / "slurm/train.sbatch").read_text()
    assert text.endswith(f"\n{END}")
    assert THREADS in text
    unindented = "\n".join(line.removeprefix("    ") for line in text.splitlines())
    assert FORWARD.format(signal="USR1") in unindented
    rendered = script()
    for line in (
        'srun --mpi=pmi2 --kill-on-bad-exit=1 "${RUN[@]}"',
        "NO_REQUEUE=''",
        "MAX_ATTEMPTS=10",
        "--resume if-exists",
        '--set "storage.run_dir=$RUN_DIR"',
        "--open-mode=append",
    ):
        assert line in text and line in rendered
    assert "\nNO_REQUEUE=''" in text and "\nNO_REQUEUE=''" in rendered
    assert "--resume if-exists" in text and "--resume if-exists" in rendered


def test_the_commands_need_neither_mpi_nor_slurm(tmp_path):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py/__init__.py").write_text("raise ImportError('no MPI')\n")
    command = [sys.executable, "-m", "hpcrl"]
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}:{TOP}", "PATH": str(tmp_path)}

    def hpcrl(*arguments):
        done = subprocess.run(
            [*command, *arguments], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    code, text, errors = hpcrl("render", IMPALA, "--site", "testcluster", "--set", "seed=3", "--time", "30")
    assert (code, errors) == (0, "") and text.startswith("#!/usr/bin/env bash\n")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, env=os.environ)
    sweep = ("render", IMPALA, "--site", "testcluster", "--seeds", "0-1", "--sweep")
    code, text, errors = hpcrl(*sweep, "algorithm.gamma=0.9,0.99", "--at-once", "3")
    assert (code, errors) == (0, "") and "#SBATCH --array=0-3%3\n" in text
    code, text, errors = hpcrl(*sweep, "algorithm.gamma=0.9,2", "--at-once", "3")
    assert (code, text) == (2, "") and "algorithm.gamma=2" in errors
    code, text, errors = hpcrl("submit", IMPALA, "--site", "testcluster")
    assert (code, text) == (2, "") and "sbatch cannot be started" in errors and "hpcrl render" in errors
