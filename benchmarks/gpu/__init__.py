"""The parts of gpu_check.py: each a module with functions that yield rows, run in a process of its own."""
