"""Layers over several NVLink domains: two hops, rails, rings, and a scale-out switch that multicasts and adds."""
