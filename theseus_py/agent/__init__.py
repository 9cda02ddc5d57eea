"""The node's agent: keeps the job's log with the agents of the other nodes, and hands it to the ranks of this one.

One process a job and host. `theseus_py.agent.client` is how others talk to it; everything else here runs inside it:

    server     the Unix socket that ranks and commands connect to (`wire` says what they speak)
    channel    authenticated TCP connections to the other agents
    replica    Raft over them, by pysyncobj; `journal` is its memory
    job        records in agreed order -> the log that ranks read
    bodies     plans by hash, fetched from where they came from
    proposals  looks at a record before it is proposed; `verify` proves plans in a process of its own
    agent      puts these together

Nothing a rank does waits for any of it.
"""
