import signal

import ray

from midepoch.integrations.ray import RayExecutor


def test_a_connection_leaves_no_handler_of_sigterm(monkeypatch):
    monkeypatch.setattr(ray, "init", lambda address: signal.signal(signal.SIGTERM, print))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with RayExecutor():
        assert signal.getsignal(signal.SIGTERM) is print
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
