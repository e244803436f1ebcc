"""Operations on a running cluster, as functions with typed results; they speak the protocol."""
