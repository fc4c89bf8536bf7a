"""Spotlight's agent: the light process on a spot VM, and its workers."""
