"""What `theseus demo` runs: an AllReduce sweep and a training run on virtual hosts, and the report about both."""
