"""What a broker does only as a slave: it copies the tables of its master, and keeps its own."""
