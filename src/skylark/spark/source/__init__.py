"""Reading topics with Spark: options, offset planning, partitions and readers."""
