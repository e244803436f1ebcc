"""The blocking clients and their process: forks, interrupts, and its end.

Each program runs in an interpreter of its own, with warnings as errors; it must end by itself and
complain of nothing.
"""

from __future__ import annotations

import os

import pytest

from tests.unit.client.blocking.programs import run_program

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def test_a_forked_child_cannot_use_its_parents_client_but_its_own(namesrv: str) -> None:
    program = """
        import os
        from skylark import ClientStateError, Message
        from skylark.sync import Producer

        later = Producer("later")
        with Producer("parent") as producer:
            producer.send(Message("Forked", b"parent"))
            child = os.fork()
            if child == 0:
                for use in (
                    lambda: producer.send(Message("Forked", b"shared")),
                    lambda: producer.submit(Message("Forked", b"shared")),
                    producer.start,
                    producer.stop,
                ):
                    try:
                        use()
                    except ClientStateError as error:
                        text = str(error).replace(str(os.getpid()), "CHILD")
                        print(text.replace(str(os.getppid()), "PARENT"), flush=True)
                for mine in (Producer("child"), later):
                    with mine:
                        print(mine.send(Message("Forked", b"child")).status.value, flush=True)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            print(status, producer.send(Message("Forked", b"parent")).status.value)
    """
    refused = (
        "this client belongs to process PARENT, from which process CHILD was forked: make clients"
        " after the fork, in the process that uses them"
    )
    assert run_program(program, namesrv, "Forked").splitlines() == [
        *[refused] * 4,
        "SEND_OK",
        "SEND_OK",
        "0 SEND_OK",
    ]


def test_nothing_holds_up_the_end_of_a_program(namesrv: str) -> None:
    program = """
        import threading
        from skylark import ConsumeFromWhere, Message, TxState
        from skylark.sync import LitePullConsumer, Producer, PushConsumer, read_arrow

        producer = Producer("unstopped")
        producer.start()
        producer.send(Message("Unstopped", b"x" * 100_000))        # compressed in a thread
        consumer = PushConsumer(
            "unstopped", consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        )
        called = threading.Event()

        @consumer.subscribe("Unstopped")
        def hang(message):
            called.set()
            threading.Event().wait()

        class Listener:
            def execute(self, message, arg):
                begun.set()
                threading.Event().wait()

            def check(self, message):
                return TxState.UNKNOWN

        begun = threading.Event()
        hanging = Producer("hanging", transaction_listener=Listener())
        hanging.start()
        message = Message("Unstopped", b"half")
        threading.Thread(target=hanging.send_in_transaction, args=[message], daemon=True).start()
        consumer.start()
        lite = LitePullConsumer("lite").subscribe("Unstopped")
        lite.start()
        batches = read_arrow("Unstopped")
        assert next(batches).num_rows
        assert called.wait(20) and begun.wait(20)
        others = [each for each in threading.enumerate() if not each.daemon]
        print(others == [threading.main_thread()])
    """
    assert run_program(program, namesrv, "Unstopped") == "True\n"


def test_an_interrupted_call_leaves_the_client_usable(namesrv: str) -> None:
    program = """
        import os, signal, threading
        from skylark import Message
        from skylark.sync import LitePullConsumer, Producer

        def interrupt():
            os.kill(os.getpid(), signal.SIGINT)

        with Producer("interrupted") as producer:
            producer.send(Message("Disturbed", b"x"))
            with LitePullConsumer("disturbed").subscribe("Disturbed", "none") as consumer:
                threading.Timer(0.3, interrupt).start()
                try:
                    consumer.poll(timeout=60)
                except KeyboardInterrupt:
                    print("interrupted")
                print(consumer.poll(timeout=0.01))
            print(producer.send(Message("Disturbed", b"x")).status.value)
    """
    assert run_program(program, namesrv, "Disturbed").splitlines() == [
        "interrupted",
        "[]",
        "SEND_OK",
    ]
