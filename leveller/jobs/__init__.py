"""Which processes and connections of this host are a job's."""
