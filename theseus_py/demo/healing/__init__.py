"""The demo's second half: a training run one of whose NICs gets slow, and how the job heals itself."""
