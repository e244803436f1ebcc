"""A message that appears if, and only if, a row was written to the database.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/transaction.py
"""

import sqlite3

from skylark import Message, MessageExt, TxState
from skylark.sync import LitePullConsumer, Producer

database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("create table orders (id text, amount integer check (amount > 0), tx text)")


def place_order(producer: Producer, order: str, amount: int) -> None:
    # The message is hidden until the block ends; an exception in the block takes it back.
    with producer.transaction(Message("ExampleCheckouts", order.encode())) as tx, database:
        database.execute("insert into orders values (?, ?, ?)", (order, amount, tx.id))


def main() -> None:
    with Producer("example-checkout") as producer:

        @producer.transaction_checker
        def check(message: MessageExt) -> TxState:
            """Asked when the end of a block was never heard of, after a crash for example."""
            query = "select count(*) from orders where tx = ?"
            (count,) = database.execute(query, (message.transaction_id,)).fetchone()
            return TxState.COMMIT if count else TxState.ROLLBACK

        place_order(producer, "tea", 5)
        try:
            place_order(producer, "nonsense", -1)
        except sqlite3.IntegrityError as error:
            print(f"rolled back: {error}")

    with LitePullConsumer("example-warehouse").subscribe("ExampleCheckouts") as consumer:
        messages = consumer.poll(timeout=30)
        print(f"orders to pack: {[message.body.decode() for message in messages]}")
        consumer.commit(messages)


if __name__ == "__main__":
    main()
