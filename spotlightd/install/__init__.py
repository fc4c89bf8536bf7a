"""Putting daemon and agent under systemd: `spotlightd install` and `spotlight-agent install`.

Service (what belongs to it) -> steps (what to write, remove and run) -> apply (does it, or says)
"""
