"""The one packet network of the functional machine: hubs, switches and sources over the blocks of `protocol`."""
