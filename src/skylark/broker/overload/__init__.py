"""Protection from overload: what the broker refuses, and when."""
