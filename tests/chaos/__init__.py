"""`make chaos`: a whole run on this machine, with everything that can die dying."""
