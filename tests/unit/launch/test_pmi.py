import os
import socket
import threading

import pytest

from hpcrl.launch.pmi import LONGEST_VALUE, honest_server

PROMISE = b"cmd=maxes kvsname_max=256 keylen_max=256 vallen_max=1024\n"
OTHERS = [
    b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
    b"cmd=get_result rc=0 msg=success value=20F72264D7\n",
    b"cmd=maxes kvsname_max=256 keylen_max=256 vallen_max=64\n",
]


@pytest.fixture
def connection():
    """(descriptor of this process, the server's end)"""
    client, server = socket.socketpair()
    with client, server:
        server.settimeout(10)
        yield client.fileno(), server


def ask(descriptor, server, request, answer):
    """What the server got and what came back."""
    os.write(descriptor, request)
    got = server.recv(65536)
    server.sendall(answer)
    return got, os.read(descriptor, 65536)


def step_of_slurm(descriptor, **more):
    return {"PMI_FD": str(descriptor), "SLURM_STEP_ID": "0"} | more


def test_only_the_promise_is_changed(connection):
    descriptor, server = connection
    with honest_server(step_of_slurm(descriptor)):
        got, answer = ask(descriptor, server, b"cmd=get_maxes\n", PROMISE)
        assert got == b"cmd=get_maxes\n"
        assert answer == PROMISE.replace(b"1024", b"%d" % LONGEST_VALUE)
        for other in OTHERS:
            assert ask(descriptor, server, b"cmd=put kvsname=1.0 key=a value=b\n", other)[1] == other


def test_a_value_of_that_length_fits_into_slurms_line():
    digits = 2 * ((LONGEST_VALUE - 2) // 2)
    start = f"cmd=put kvsname={2**32 - 1}.{2**32 - 1} key=-allgather-shm-99-{10**7}-seg-10/10 value="
    assert len(start) + digits + 1 < 1024
    assert (LONGEST_VALUE - 2) // 2 == (LONGEST_VALUE - 1) // 2  # how MPICH cuts, and how it puts together


def test_afterwards_the_connection_is_the_original_one(connection, monkeypatch):
    descriptor, server = connection
    fork, children = os.fork, []
    monkeypatch.setattr(os, "fork", lambda: children.append(fork()) or children[-1])
    environ = step_of_slurm(descriptor)
    before = os.fstat(descriptor).st_ino, os.get_inheritable(descriptor)
    with honest_server(environ):
        assert os.fstat(descriptor).st_ino != before[0]
        assert os.get_inheritable(descriptor) == before[1]
    assert (os.fstat(descriptor).st_ino, os.get_inheritable(descriptor)) == before
    assert ask(descriptor, server, b"cmd=get_maxes\n", PROMISE)[1] == PROMISE
    (child,) = children
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def test_long_requests_arrive_whole(connection):
    descriptor, server = connection
    request = b"x" * 1_000_000
    with honest_server(step_of_slurm(descriptor)):
        sender = threading.Thread(target=os.write, args=(descriptor, request))
        sender.start()
        got = b""
        while len(got) < len(request):
            got += server.recv(65536)
        sender.join()
    assert got == request


def test_the_end_of_the_server_is_seen(connection):
    descriptor, server = connection
    with honest_server(step_of_slurm(descriptor)):
        server.close()
        assert os.read(descriptor, 1) == b""


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_STEP_ID": "0"},
        {"SLURM_STEP_ID": "0", "PMI_FD": "none"},
        {"PMI_FD": "{}"},
        {"PMI_FD": "{}", "SLURM_STEP_ID": "0", "PMI_HOSTNAME": "node1"},
    ],
)
def test_nothing_is_done_elsewhere(connection, environ):
    descriptor, server = connection
    before = os.fstat(descriptor).st_ino
    with honest_server({name: value.format(descriptor) for name, value in environ.items()}):
        assert os.fstat(descriptor).st_ino == before
        assert ask(descriptor, server, b"cmd=get_maxes\n", PROMISE)[1] == PROMISE
