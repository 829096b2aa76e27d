"""What all tests share: an index folder each, `datasets` and `ray` offline, and limits that hold on a busy machine too.

No test may fail because the machine is slow. So no test sets a timeout for the processes that it starts: a hang ends at
the limit of the test, with the tracebacks of all threads.
"""

import os
import secrets
import shutil
import signal
import tempfile
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest

import s3
from midepoch.errors import MissingExtraError

TESTS = Path(__file__).parent
PROCESS_SECONDS = 1200
"""The limit of a test outside tests/unit. They start processes or try many cases; the slowest needs a tenth."""

hypothesis.settings.register_profile(
    "patient", max_examples=40, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("nightly", hypothesis.settings.get_profile("patient"), max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "patient"))


def pytest_configure(config):
    """Set up `datasets` and `ray` before any test module imports them."""
    config.hf_home = tempfile.mkdtemp(prefix="midepoch-hf-")
    config.ray_home = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the names of its sockets have to be short
    os.environ |= {
        "HF_HOME": config.hf_home,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "RAY_TMPDIR": config.ray_home,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # Ray would write one to the home folder
    }


def pytest_unconfigure(config):
    shutil.rmtree(config.hf_home, ignore_errors=True)
    shutil.rmtree(config.ray_home, ignore_errors=True)


def pytest_collection_modifyitems(items):
    """Give tests outside tests/unit more time than the default of pyproject.toml before they count as hanging."""
    for item in items:
        if TESTS / "unit" not in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PROCESS_SECONDS))


@pytest.fixture(autouse=True)
def _own_index_folder(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MIDEPOCH_INDEX_DIR", str(tmp_path_factory.mktemp("index")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Skip a test that needs torch where it is not installed, as with a Python that has no build of it."""
    try:
        return (yield)
    except (MissingExtraError, ModuleNotFoundError) as error:
        if "torch" in str(error) and find_spec("torch") is None:
            pytest.skip("torch is not installed")
        raise


@pytest.fixture(autouse=True)
def _own_sigterm():
    """Let no test leave a handler of SIGTERM, as ``ray.init`` does: forked processes would not end on it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture(scope="session")
def s3_port():
    """The port of an S3 server on loopback, started by the first test that asks for it."""
    with s3.serving() as port:
        yield port


@pytest.fixture
def proxy(s3_port):
    """A proxy in front of the S3 server, for this test alone."""
    with s3.proxying(s3_port) as made:
        yield made
