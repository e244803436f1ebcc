"""Data pipelines on Spark. Present so far: the search for a Java runtime (``java.py``)."""
