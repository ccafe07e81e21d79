"""The Horovod backend, and the program that builds Horovod."""
