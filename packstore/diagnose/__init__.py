"""What limits training on this machine, what is installed on it, and a demo dataset. Imports any room but cli."""
