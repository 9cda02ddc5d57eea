"""LEVELLER: jobs that share a network make equal progress.

A controller gives each flow a level, the lower its job's progress rate the higher; an agent on every host says how its
jobs do and marks their packets. `leveller.core` decides and does no I/O; what acts stands beside it.
"""
