"""A whole cluster on this machine from one command: what ``skylark up`` starts and watches."""
