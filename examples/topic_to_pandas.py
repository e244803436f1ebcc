"""Read a whole topic as a table, for pyarrow, pandas or a Parquet file.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/topic_to_pandas.py

Needs pip install "skylark-mq[arrow]" pandas.
"""

from datetime import UTC, datetime

import pyarrow as pa

from skylark import Message
from skylark.sync import Producer, read_arrow

TOPIC = "ExampleClicks"


def main() -> None:
    began = datetime.now(UTC)
    with Producer("example-site") as producer:
        pages = ["home", "cart", "home", "help"] * 250
        messages = [Message(TOPIC, b"%d" % n, tag=page) for n, page in enumerate(pages)]
        for future in [producer.submit(message) for message in messages]:
            future.result()

    # Batches of one queue each; columns that are not asked for are not decoded.
    columns = ["tags", "body", "storeTimestamp"]
    batches = read_arrow(TOPIC, start=began, end="latest", columns=columns)
    table = pa.Table.from_batches(list(batches))
    print(f"{table.num_rows} rows of {table.column_names}")

    frame = table.to_pandas()
    frame["number"] = frame["body"].astype(int)
    for page, group in frame.groupby("tags"):
        print(f"{page}: {len(group)} clicks, the last is {group['number'].max()}")


if __name__ == "__main__":
    main()
