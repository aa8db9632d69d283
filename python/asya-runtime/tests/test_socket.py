"""The socket protocol of docs/reference/asya-protocol.md section 3."""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time

import pytest

from harness import Connection, envelope, error_of, eventually


def test_a_connection_stays_and_answers_in_order(start):
    with start("handlers.echo").connect() as connection:
        for number in range(100):
            connection.send(envelope(number))  # the next request may come before the last answer
        answers = [connection.receive() for _ in range(100)]
    assert [answer[0]["payload"] for answer in answers] == list(range(100))


def test_one_connection_per_message_works_as_well(shared):
    runtime = shared("handlers.echo")
    assert [runtime.ask(envelope(number))[0]["payload"] for number in range(20)] == list(range(20))


def test_a_half_closed_connection_gets_its_answer(shared):
    with shared("handlers.echo").connect() as connection:
        connection.send(envelope(1))
        connection.sock.shutdown(socket.SHUT_WR)
        assert connection.receive()[0]["payload"] == 1


def test_a_ping_is_an_empty_frame(shared):
    for handler, env in [
        ("handlers.echo", {}),
        ("handlers.echo_async", {}),
        ("handlers.echo", {"ASYA_RUNTIME_CONCURRENCY": "2"}),
    ]:
        with shared(handler, **env).connect() as connection:
            connection.send(b"")
            assert connection.receive_frame() == b""
            assert connection.ask(envelope(1))[0]["payload"] == 1


def test_too_large_frame_is_rejected_by_its_length(shared):
    runtime = shared("handlers.echo", ASYA_MAX_FRAME_BYTES="70000")
    with runtime.connect() as connection:
        connection.sock.sendall(struct.pack(">I", 0xFFFFFFFF))
        code, details = error_of(connection.receive())
        assert code == "msg_parsing_error"
        assert "4294967295 bytes exceeds the limit of 70000" in details["message"]
        assert connection.receive_frame() is None, "and the connection is closed"
    assert runtime.ask(envelope("x" * 60_000))[0]["payload"] == "x" * 60_000


def test_large_messages_go_both_ways(shared):
    text = "x" * 20_000_000
    assert shared("handlers.echo").ask(envelope(text))[0]["payload"] == text


def test_connection_closed_within_a_frame_is_reported(shared):
    with shared("handlers.echo").connect() as connection:
        connection.sock.sendall(struct.pack(">I", 100) + b"{")
        connection.sock.shutdown(socket.SHUT_WR)
        code, details = error_of(connection.receive())
    assert code == "connection_error"
    assert "99 bytes before its end" in details["message"]


def test_probes_and_slow_clients_do_not_delay_others(start):
    runtime = start("handlers.echo")
    slow = [runtime.connect() for _ in range(20)]
    for index, connection in enumerate(slow):
        connection.sock.sendall(struct.pack(">I", 100)[: index % 5] + b"x" * max(0, index % 5 - 4))
    for _ in range(20):
        runtime.connect().close()
    assert runtime.ask(envelope(1))[0]["payload"] == 1
    for connection in slow:
        connection.close()
    assert runtime.ask(envelope(2))[0]["payload"] == 2
    assert "Traceback" not in runtime.log()


def test_client_that_does_not_read_does_not_delay_others(start):
    runtime = start("handlers.echo")
    with runtime.connect() as lazy:
        lazy.send(envelope("x" * 5_000_000))
        assert runtime.ask(envelope(1))[0]["payload"] == 1
        assert len(lazy.receive()[0]["payload"]) == 5_000_000, "its answer waited for it"


def test_request_of_a_closed_connection_is_not_started(start):
    """After its timeout the sidecar closes the connection, and the message must not be processed twice."""
    runtime = start("handlers.sleepy")
    first, second = runtime.connect(), runtime.connect()
    first.send(envelope("first"))
    eventually(lambda: runtime.notes() == ["begin first"], "the first call runs")
    second.send(envelope("second"))
    second.close()
    (runtime.folder / "notes.go").touch()
    assert first.receive()[0]["payload"] == "first"
    assert runtime.ask(envelope("third"))[0]["payload"] == "third"
    assert not any("second" in note for note in runtime.notes())


def test_response_for_a_closed_connection_is_dropped(start):
    runtime = start("handlers.sleepy")
    with runtime.connect() as connection:
        connection.send(envelope("first"))
        eventually(runtime.notes, "the call runs")
    (runtime.folder / "notes.go").touch()
    assert runtime.ask(envelope("second"))[0]["payload"] == "second"
    assert "end first" in runtime.notes()


@pytest.mark.parametrize("handler", ["handlers.sleepy", "handlers.sleepy_async"])
def test_sigterm_finishes_running_calls_and_drops_the_rest(start, handler):
    runtime = start(handler)
    running, idle, half = runtime.connect(), runtime.connect(), runtime.connect()
    half.sock.sendall(b"\0\0")
    running.send(envelope("running"))
    eventually(lambda: runtime.notes() == ["begin running"], "the call runs")
    running.send(envelope("not read"))
    runtime.terminate()
    (runtime.folder / "notes.go").touch()
    assert running.receive()[0]["payload"] == "running"
    for connection in (running, idle, half):
        assert connection.receive_frame() is None
    assert runtime.exit_code() == 0
    assert runtime.notes() == ["begin running", "end running"]
    assert sorted(path.name for path in runtime.folder.iterdir()) == ["notes", "notes.go", "stderr"]


def test_sigterm_drops_waiting_requests_of_other_connections(start):
    runtime = start("handlers.sleepy")
    running, waiting = runtime.connect(), runtime.connect()
    running.send(envelope("running"))
    eventually(lambda: runtime.notes() == ["begin running"], "the call runs")
    waiting.send(envelope("waiting"))
    runtime.terminate()
    (runtime.folder / "notes.go").touch()
    assert running.receive()[0]["payload"] == "running"
    assert waiting.receive_frame() is None
    assert runtime.exit_code() == 0
    assert not any("waiting" in note for note in runtime.notes())


def test_sigterm_without_work_ends_at_once(start):
    runtime = start("handlers.echo")
    with runtime.connect():
        runtime.terminate()
        assert runtime.exit_code() == 0


def test_concurrency_runs_as_many_calls_at_once(start):
    runtime = start("handlers.meet", ASYA_RUNTIME_CONCURRENCY="4")
    connections = [runtime.connect() for _ in range(4)]
    for connection in connections:
        connection.send(envelope(4))
    assert [connection.receive()[0]["payload"] for connection in connections] == [True] * 4


@pytest.mark.parametrize(("concurrency", "together"), [("1", 1), ("3", 3)])
def test_async_calls_run_together_up_to_the_concurrency(start, concurrency, together):
    runtime = start("handlers.sleepy_async", ASYA_RUNTIME_CONCURRENCY=concurrency)
    connections = [runtime.connect() for _ in range(4)]
    for number, connection in enumerate(connections):
        connection.send(envelope(number))
        if number < together:
            eventually(lambda number=number: len(runtime.notes()) == number + 1, "one more call runs")
    assert len(runtime.notes()) == together
    (runtime.folder / "notes.go").touch()
    assert [connection.receive()[0]["payload"] for connection in connections] == [0, 1, 2, 3]
    assert len(runtime.notes()) == 8


def test_async_call_of_a_closed_connection_is_cancelled(start):
    runtime = start("handlers.sleepy_async")
    with runtime.connect() as connection:
        connection.send(envelope("x"))
        eventually(runtime.notes, "the call runs")
    eventually(lambda: "cancelled x" in runtime.notes(), "it is cancelled")
    (runtime.folder / "notes.go").touch()
    assert runtime.ask(envelope("y"))[0]["payload"] == "y"


def test_an_async_call_ends_at_the_deadline(start):
    from datetime import datetime, timedelta, timezone

    runtime = start("handlers.sleepy_async")
    deadline = datetime.now(timezone.utc) + timedelta(seconds=2)
    code, details = error_of(runtime.ask(envelope("x", deadline=deadline.isoformat())))
    assert (code, details["type"]) == ("processing_error", "DeadlineExceeded")
    assert runtime.notes() == ["begin x", "cancelled x"]


@pytest.mark.parametrize(
    ("handler", "env", "code"),
    [
        ("handlers.sleepy", {}, 4),
        ("handlers.sleepy", {"ASYA_RUNTIME_CONCURRENCY": "2"}, 4),
        ("handlers.blocks_the_loop", {}, 4),
        ("handlers.spins", {}, 1),
    ],
)
def test_call_that_does_not_end_ends_the_process(start, handler, env, code):
    runtime = start(handler, ASYA_RUNTIME_TIMEOUT="500ms", **env)
    with runtime.connect() as connection:
        connection.send(envelope("x"))
        eventually(runtime.notes, "the call runs")
    assert runtime.exit_code() == code
    assert "handlers.py" in runtime.log(), "the log shows where"
    if code == 4:
        assert "a call does not end, and the sidecar no longer waits for it" in runtime.log()


def test_call_that_does_not_end_ends_the_process_without_a_known_limit(start):
    script = "import asya_runtime.runtime as r; r.ABANDONED_AFTER = 0.2; raise SystemExit(r.main())"
    runtime = start("handlers.sleepy", command=[sys.executable, "-c", script])
    waiting = runtime.connect()
    with runtime.connect() as connection:
        connection.send(envelope("x"))
        eventually(runtime.notes, "the call runs")
        time.sleep(2)
        assert runtime.process.poll() is None, "the sidecar waits"
    assert runtime.exit_code() == 4
    waiting.close()


def test_process_continues_after_calls_that_end_in_time(start):
    runtime = start("handlers.sleepy", ASYA_RUNTIME_TIMEOUT="1h")
    (runtime.folder / "notes.go").touch()
    assert [runtime.ask(envelope(number))[0]["payload"] for number in range(3)] == [0, 1, 2]
    assert runtime.process.poll() is None


def test_many_connections_at_once_lose_nothing(shared):
    runtime = shared("handlers.echo")
    lost: list[str] = []

    def client(name: int) -> None:
        with runtime.connect() as connection:
            for number in range(200):
                if connection.ask(envelope([[name, number]]))[0]["payload"] != [name, number]:
                    lost.append(f"{name}.{number}")

    threads = [threading.Thread(target=client, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []


def test_too_many_connections_close_the_newest(start):
    runtime = start("handlers.echo")
    held = [runtime.connect() for _ in range(128)]
    assert all(connection.ask(envelope(1)) for connection in held)
    with Connection(runtime.address) as newest:
        assert newest.receive_frame() is None
    held.pop().close()
    eventually(lambda: _answers(runtime), "there is room again")


def _answers(runtime):
    with runtime.connect() as connection:
        try:
            connection.send(envelope(1))
            return connection.receive_frame()
        except OSError:
            return None
