"""Recordings without road users: rooms, desks, hands, machines, nature, lamps, empty streets."""
