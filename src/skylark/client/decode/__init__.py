"""Decoders of message bodies: text, hex, JSON, MessagePack, Avro, Protobuf."""
