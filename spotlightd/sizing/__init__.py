"""What a run will need before anything is started: GPUs, memory, time and money. No torch."""
