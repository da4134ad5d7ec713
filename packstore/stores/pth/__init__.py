"""``.pth``: write, read, check and scavenge, without torch."""
