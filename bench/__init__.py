"""The benchmarks: what the bus does on this machine, beside floors and peers measured in the same run."""
