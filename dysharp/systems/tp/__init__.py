"""One short file per system, or family, that runs a tensor-parallel sub-layer. The register is that of collectives."""
