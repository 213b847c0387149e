"""Blocks of collectives: the chunks that ops move, and the steps of kernels."""
