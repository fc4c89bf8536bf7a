"""Getting spot machines: a fleet is rendered for a provider, launched, and joins by itself.

    Fleet (what is wanted) + offers (zones and prices) -> sky.py or kubernetes.py (what to launch)
    launch.py runs the provider's own command; the VMs' agents then join like any others

SkyPilot and Kubernetes do what they are good at: find machines, and replace those that vanish.
"""
