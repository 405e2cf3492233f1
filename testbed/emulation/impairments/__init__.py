"""Links that lose, delay and damage frames: an eBPF program at the receiving end, a process for delays."""
