"""Learns: reward, groups, DPPO, packing, trainer, checkpoint."""
