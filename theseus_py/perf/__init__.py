"""The engine of `theseus perf`: sizes, buffers, expected results and nccl-tests' report (pure), and the timed sweep."""
