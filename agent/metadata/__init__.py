"""Preemption notices from clouds' metadata services."""
