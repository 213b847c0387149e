"""Requests as they come: an event simulation of the scheduler on a replica or several."""
