"""The run in virtual time: real planner, scheduler, membership, leases, step commits, weight swarm
and ledger; only durations, losses and rewards are modelled (`assumptions.toml`)."""
