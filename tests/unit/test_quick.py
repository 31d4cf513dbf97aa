"""What the quick part of the tests is: `make test`, on a machine that has next to nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

import pytest

from plugins.in_turn import LEFT_OUT
from plugins.quick import is_quick, kinds_of
from redis_world.testing.servers import ServerKind
from support import private_servers
from support.backends import ALL_KINDS, CLUSTER, KINDS, SENTINEL
from support.private_servers import FROM_A_WHEEL, ONE, any_kind, give_up, here, private_server

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).parents[2]
REAL: Final = {*ALL_KINDS} - {"memory"}
SIZES: Final = 30
TESTS: Final = """
import pytest
from support.backends import ALL_KINDS

@pytest.mark.parametrize("anything", ALL_KINDS)
def test_kind(anything): pass

@pytest.mark.everywhere
@pytest.mark.parametrize("anything", ALL_KINDS)
def test_everywhere(anything): pass

@pytest.mark.without("memory", "cluster", why="it tests what they do not have")
@pytest.mark.parametrize("anything", ALL_KINDS)
def test_without(anything): pass

@pytest.mark.large
@pytest.mark.parametrize("anything", ALL_KINDS)
def test_large(anything): pass

@pytest.mark.parametrize("how", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_slow(how): pass

@pytest.mark.needs("no-such-program")
def test_needs(): raise AssertionError

def test_plain(): pass
"""


ACCEPTANCE: Final = """
import pytest
def test_acceptance(): pass
@pytest.mark.quick
def test_quick(): pass
"""


class Project:
    """A folder with tests, and this project's plugin."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        pytester.makeini(
            "[pytest]\naddopts = -p plugins.quick -p plugins.in_turn -p no:redis_world\n"
        )

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self._pytester.path / "tests" / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def run(self, *arguments: str) -> pytest.RunResult:
        return self._pytester.runpytest_subprocess("-v", "tests", *arguments)

    def passed(self, *arguments: str) -> list[str]:
        """The names of the tests that passed."""
        text = self.run(*arguments).stdout.str()
        return re.findall(r"::test_(\S+) PASSED", text)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    monkeypatch.delenv("CI", raising=False)
    return Project(pytester)


def test_it_has_the_embedded_server_and_one_that_a_wheel_brings(project: Project) -> None:
    project.write(test_a=TESTS, chaos__test_b="raise SystemExit('it is not even imported')")
    project.write(acceptance__test_c=ACCEPTANCE)
    assert sorted(project.passed("--quick")) == sorted(
        [
            *(f"kind[{kind}]" for kind in ("memory", "valkey9", "one")),
            *(
                f"everywhere[{k}]"
                for k in ("memory", "redis8", "valkey9", "one", CLUSTER, SENTINEL)
            ),
            *(f"without[{kind}]" for kind in ("valkey9", "one")),
            *(f"large[{kind}]" for kind in ("valkey9", "one")),
            *("quick", "slow[1]", "plain"),
        ]
    )


def test_servers_that_few_tests_need_are_there_for_these_alone(project: Project) -> None:
    project.write(
        conftest="""
import pytest
ended = []
class Servers:
    def end(self, *kinds):
        ended.extend(kinds)
@pytest.fixture(scope="session")
def servers():
    return Servers()
""",
        test_a="""
from conftest import ended
def test_early(servers): assert {"cluster", "sentinel"} < {*ended}
""",
        test_b="""
import pytest
from conftest import ended
@pytest.mark.everywhere
@pytest.mark.parametrize("kind", ["memory", "cluster", "sentinel"])
def test_kind(servers, kind): assert bool(ended) == (kind == "memory")
""",
    )
    passed = project.passed("--quick")
    assert passed == ["kind[cluster]", "kind[sentinel]", "early", "kind[memory]"]


def test_without_the_option_nothing_is_left_out(project: Project) -> None:
    project.write(test_a=TESTS, chaos__test_b="def test_chaos(): pass")
    assert {*project.passed()} == {
        *(f"{test}[{kind}]" for test in ("kind", "everywhere", "large") for kind in ALL_KINDS),
        *(f"without[{kind}]" for kind in {*ALL_KINDS} - {"memory", CLUSTER}),
        *("slow[1]", "slow[2]", "plain", "chaos"),
    }


def test_servers_take_turns(project: Project) -> None:
    project.write(
        test_a=f"""
import pytest
from support.backends import CLUSTER, KINDS, SENTINEL

@pytest.mark.parametrize("size", [*range({SIZES})])
@pytest.mark.parametrize("backend", [*KINDS, CLUSTER, SENTINEL])
def test_behaviour(backend, size): pass

@pytest.mark.slow
@pytest.mark.parametrize("size", [*range({SIZES})])
@pytest.mark.parametrize("real_backend", KINDS[1:])
def test_not_quick(real_backend, size): pass

@pytest.mark.parametrize("backend", ["redis7"])
def test_alone(backend): pass

@pytest.mark.parametrize("kind", KINDS)
def test_each(kind): pass

@pytest.mark.parametrize("kind", ["redis7", "redis8"])
@pytest.mark.parametrize("backend", KINDS)
def test_two_servers(backend, kind): pass
"""
    )
    passed = project.passed("--in-turn")
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name in passed:
        test, *parameters = re.split(r"[][-]", name)
        kinds[test][next(each for each in parameters if each in ALL_KINDS)] += 1
    behaviour = kinds["behaviour"]
    assert behaviour["memory"] == SIZES
    assert behaviour["redis7"] + behaviour["redis8"] == SIZES
    assert behaviour[CLUSTER] + behaviour[SENTINEL] == SIZES
    assert "valkey9" not in behaviour, "the quick part has run it"
    assert kinds["not_quick"].total() == SIZES
    assert min([*behaviour.values(), *kinds["not_quick"].values()]) >= SIZES // 5
    assert behaviour.keys() | kinds["not_quick"].keys() == {"memory", *REAL - {ONE}}
    assert kinds["alone"] == {"redis7": 1}
    assert kinds["each"] == dict.fromkeys(KINDS, 1)
    assert kinds["two_servers"].total() == 2 * len(KINDS), "which of the two has the turn?"
    assert project.passed("--in-turn") == passed


def test_a_program_that_is_missing_is_a_failure_in_ci(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(test_a=TESTS)
    project.run("-k", "needs").assert_outcomes(skipped=1)
    monkeypatch.setenv("CI", "true")
    result = project.run("-k", "needs")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no-such-program is not there*"])


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_skipped_test_fails_it(project: Project, workers: str) -> None:
    project.write(
        test_a="import pytest\n@pytest.mark.skip('why')\ndef test_it(): pass\ndef test_b(): pass"
    )
    assert project.run("-n", workers).ret == pytest.ExitCode.OK
    result = project.run("-n", workers, "--quick")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*1 tests of the quick part were skipped*"])


class TestServers:
    @pytest.fixture(autouse=True)
    def _wheels_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(private_servers, "_are_wheels_enough", True)

    @pytest.mark.parametrize("kind", sorted(REAL - {CLUSTER, SENTINEL}))
    def test_all_come_from_wheels(self, kind: ServerKind) -> None:
        assert here(kind) in FROM_A_WHEEL

    def test_one_is_enough(self) -> None:
        assert any_kind() in FROM_A_WHEEL
        with private_server(ONE) as server:
            assert server.kind == FROM_A_WHEEL[0]

    def test_one_that_is_missing_is_a_failure(self) -> None:
        with pytest.raises(pytest.fail.Exception, match="no valkey9 server: not installed"):
            give_up("valkey9", "not installed")


def test_what_runs_on_real_servers_does_so_in_the_quick_part(
    request: pytest.FixtureRequest,
) -> None:
    """A list of kinds without the one of the quick part would leave the embedded server alone."""
    quick: defaultdict[str, set[str]] = defaultdict(set)
    everywhere: defaultdict[str, set[str]] = defaultdict(set)
    for item in request.session.items + request.config.stash[LEFT_OUT]:
        name = item.nodeid.partition("[")[0]
        everywhere[name] |= kinds_of(item)
        if is_quick(item):
            quick[name] |= kinds_of(item)
    assert not [name for name in quick if everywhere[name] & REAL and not quick[name] & REAL]


def commands_of(target: str) -> list[str]:
    """The test sessions of a target."""
    done = subprocess.run(
        ["make", "--dry-run", "--silent", target, f"PYTHON={sys.executable}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stdout.replace("\\\n", "").splitlines() if "-m pytest" in line]


def test_make_test_runs_the_quick_part() -> None:
    (command,) = commands_of("test")
    assert " --quick " in command


def test_make_test_all_leaves_nothing_out() -> None:
    """All that `make test` leaves out, and the quick part again where something else is new."""
    rest, *others = commands_of("test-all")
    (everything,) = commands_of("test-everything")
    assert rest.replace(" --in-turn ", " ") == everything
    assert rest.split()[-1] == "tests"
    options = [each.partition("=")[0] for each in rest.split() if each.startswith("-")]
    assert not {"--quick", "-k", "--deselect", "--ignore", "--ignore-glob"} & {*options}
    assert options.count("-m") == 1, "the module, and no expression of markers"
    assert {"--cov-fail-under", "--lua-cov-fail-under"} <= {*options}
    assert others
    assert all(" --quick " in each for each in others)


def test_signals_that_were_ignored_reach_the_processes_of_tests() -> None:
    """As of `nohup make test &`, and of some CI machines."""
    test = f"{ROOT}/tests/unit/test_signals.py::test_a_forked_process_ends_by_a_signal"
    pytest_ = f"{sys.executable} -m pytest -q -p no:cacheprovider -n 0 --no-cov"
    done = subprocess.run(
        ["sh", "-c", f'trap "" INT QUIT; exec {pytest_} "{test}[os.fork-SIGINT-main]"'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
