"""The timer on disk: messages for any point in time, in the files of RocketMQ's timer wheel."""
