"""Tournaments of models: who meets whom, who wins, and who descends from whom. No TensorFlow."""
