"""Pop consumption: messages of any queue are hidden for a while, and acknowledged one by one."""
