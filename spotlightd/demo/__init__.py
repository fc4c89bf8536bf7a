"""The demo: a whole run on this machine, with spot VMs that come, go and die."""
