"""Starts trials and watches them, on this machine or under SLURM."""
