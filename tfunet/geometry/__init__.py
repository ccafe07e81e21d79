"""Which input an output depends on: reach, halo, windows and tiles. One arithmetic for all."""
