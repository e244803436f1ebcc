"""Messages that wait: delay levels and the timer, and their delivery when due."""
