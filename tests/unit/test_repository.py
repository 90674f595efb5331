"""Rules of the house that no linter knows: sizes, vocabulary, calls that must not stand in the package."""

import ast
import re
import tokenize
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PACKAGE = sorted((TOP / "hpcrl").rglob("*.py"))
SOURCES = PACKAGE + sorted((TOP / "jobs").rglob("*.py")) + sorted((TOP / "analysis").rglob("*.py"))

MAX_MODULE_LINES = 300
MAX_FUNCTION_STATEMENTS = 60

# `done` itself stays out: processes and requests may be done, only episodes may not.
BANNED_NAMES = {
    "dones": "terminated or truncated",
    "timestep": "env_step",
    "timesteps": "env_steps",
    "n_steps": "unroll_length",
    "num_steps": "unroll_length",
    "rollout_size": "unroll_length",
    "horizon": "unroll_length",
    "old_logp": "behavior_log_prob",
    "logp": "log_prob",
    "policy_id": "parameter_version",
    "policy_version": "parameter_version",
    "staleness": "lag",
    "version_diff": "lag",
    "last_val": "bootstrap_value",
    "train_freq": "samples_per_insert",
    "utd": "samples_per_insert",
    "master": "root or learner",
    "slave": "actor",
}
BRITISH = re.compile(
    r"(?i)\b(behaviour|colour|centre|normalis|initialis|serialis|optimis|synchronis|minimis)\w*"
)


def relative(path):
    return str(path.relative_to(TOP))


@pytest.fixture(params=SOURCES, ids=relative)
def source(request):
    return request.param


@pytest.fixture(params=PACKAGE, ids=relative)
def module(request):
    return request.param


def tree_of(path):
    return ast.parse(path.read_text())


def calls(tree):
    """(line, called name) of every call; the last part of a dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            yield node.lineno, name


def printing(tree):
    """Lines that use the function print; a Console's method of that name is another thing."""
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "print"]


def bound_names(tree):
    """(line, name) of every variable, attribute, parameter, function and class that the file defines."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name


def statements(function):
    """Statements of a function without its docstring; those of nested functions count."""
    count = sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1
    return count - (ast.get_docstring(function) is not None)


def banned(names):
    return [
        f"line {line}: {name}; use {BANNED_NAMES[word]}"
        for line, name in names
        for word in BANNED_NAMES
        if re.search(rf"(^|_){word}(_|$)", name.lower())
    ]


def test_the_package_is_found():
    assert len(PACKAGE) > 20
    assert {"hpcrl", "jobs"} <= {path.relative_to(TOP).parts[0] for path in SOURCES}


def test_the_package_holds_nothing_else():
    """Such as what an editor or a merge leaves behind."""
    files = [
        path for path in (TOP / "hpcrl").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert {path.name for path in set(files) - set(PACKAGE)} == {"py.typed"}


def test_module_length(source):
    assert len(source.read_text().splitlines()) <= MAX_MODULE_LINES


def test_function_length(source):
    functions = [node for node in ast.walk(tree_of(source)) if isinstance(node, ast.FunctionDef)]
    long = {node.name: statements(node) for node in functions if statements(node) > MAX_FUNCTION_STATEMENTS}
    assert long == {}


def test_vocabulary(source):
    assert banned(bound_names(tree_of(source))) == []


def test_american_spelling(source):
    with tokenize.open(source) as file:
        found = [
            f"line {number}: {line.strip()}" for number, line in enumerate(file, 1) if BRITISH.search(line)
        ]
    assert found == []


def test_package_does_not_assert(module):
    """An assert vanishes under python -O."""
    assert [node.lineno for node in ast.walk(tree_of(module)) if isinstance(node, ast.Assert)] == []


def test_package_does_not_print(module):
    """Output for people goes through a Console, output for programs through sys.stdout."""
    assert printing(tree_of(module)) == []


def test_only_launch_forks():
    """A forked process shares MPI's and torch's state with its parent: these two fork before there is any."""
    forking = {
        relative(path) for path in PACKAGE if {"fork", "forkpty"} & {name for _, name in calls(tree_of(path))}
    }
    assert forking == {"hpcrl/launch/supervise.py", "hpcrl/launch/pmi.py"}


@pytest.mark.parametrize("path", [p for p in PACKAGE if p.parent.name in ("roles", "comm")], ids=relative)
def test_only_buffers_travel(path):
    """Lower-case MPI calls pickle; role loops and streams move buffers."""
    pickling = {"isend", "irecv", "issend", "ibsend", "irsend", "sendrecv"}
    assert [(line, name) for line, name in calls(tree_of(path)) if name in pickling] == []


def test_only_launch_names_the_world():
    naming = [
        relative(path)
        for path in PACKAGE
        if any(
            isinstance(node, ast.Attribute) and node.attr == "COMM_WORLD" for node in ast.walk(tree_of(path))
        )
    ]
    assert all(name.startswith("hpcrl/launch/") for name in naming), naming


def test_scripts_name_no_registry():
    for script in (TOP / ".ci" / "run", *(TOP / "slurm").glob("*.sbatch")):
        assert "://" not in script.read_text(), script


class TestTheRulesThemselves:
    """A rule that finds nothing in a bad example would pass for ever."""

    def test_vocabulary_finds_variables_parameters_and_attributes(self):
        tree = ast.parse("dones = 1\ndef f(horizon): self.num_timesteps = 2\nfor n_steps in x: pass")
        assert len(banned(bound_names(tree))) == 4

    def test_vocabulary_leaves_uses_and_longer_words_alone(self):
        assert banned(bound_names(ast.parse("x = future.done()\nabandoned = 1\nmastery = 2"))) == []

    def test_statements_leave_out_the_docstring(self):
        function = ast.parse("def f():\n    'doc'\n    a = 1\n    if a:\n        b = 2\n").body[0]
        assert statements(function) == 3

    def test_calls_finds_methods(self):
        assert [name for _, name in calls(ast.parse("comm.isend(x)\nprint(1)"))] == ["isend", "print"]

    def test_printing_is_the_function_only(self):
        assert printing(ast.parse("console.print(1)\nprint(2)\nf(print)")) == [2, 3]

    @pytest.mark.parametrize("word", ["behaviour", "normalised", "Behaviours", "optimiser"])
    def test_spelling(self, word):
        assert BRITISH.search(f"the {word} of")


def test_ci_names_the_folders_of_all_tests_that_need_slurm():
    (command,) = re.findall(r"^pytest .*-m slurm (.*)$", (TOP / ".ci/run").read_text(), re.MULTILINE)
    folders = tuple(f"{folder}/" for folder in command.split())
    marked = [path for path in (TOP / "tests").rglob("test_*.py") if "pytest.mark.slurm" in path.read_text()]
    marked.remove(Path(__file__))
    assert len(marked) > 4
    assert [relative(path) for path in marked if not relative(path).startswith(folders)] == []
