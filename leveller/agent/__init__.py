"""The agent: one a host. Says how its jobs do, and marks their flows."""
