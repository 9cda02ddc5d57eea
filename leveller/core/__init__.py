"""What LEVELLER decides: progress rates, levels, baselines. Pure: no I/O, no clock, no thread."""
