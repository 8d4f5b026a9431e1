"""The program that reads and writes through cuFile, and registers GPU memory; subjects/proof.py starts it."""
