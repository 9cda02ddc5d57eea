"""The demo's second half: a training run on virtual hosts, one of whose NICs gets slow, and how the job heals itself."""
