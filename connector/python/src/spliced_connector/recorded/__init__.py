"""What the engines looked like when the adapters last ran with them; see `drift`."""
