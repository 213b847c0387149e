"""The blocks of the machine as numba kernels. Import only where they run: importing numba costs 0.4 s."""
